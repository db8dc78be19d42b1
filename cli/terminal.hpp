// SPDX-License-Identifier: Apache-2.0
//
// What the command line tool shows: tables on standard output, progress on a terminal.
#pragma once

#include <chrono>
#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

namespace flashtile::cli {

/// A table whose columns are as wide as their widest cell. Cells that look like numbers stand to
/// the right, others to the left.
class Table {
 public:
  explicit Table(std::vector<std::string> header) { rows_.push_back(std::move(header)); }
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  bool empty() const { return rows_.size() == 1; }
  void print(std::ostream& out) const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

/// One line on standard error that is rewritten while long work goes on; nothing where standard
/// error is no terminal. The line disappears with the object.
class Progress {
 public:
  Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress() { clear(); }
  /// Shows "done/total text", at most ten times a second.
  void show(size_t done, size_t total, std::string_view text);
  /// Takes the line away, so that other output can be written.
  void clear();

 private:
  bool is_terminal_;
  bool is_shown_ = false;
  std::chrono::steady_clock::time_point last_{};
};

/// A number with about `digits` digits: "0.00123", "12.3", "4.57e-08".
std::string number_text(double value, int digits = 3);

/// Bytes with a binary unit: "12.0 MiB".
std::string bytes_text(double bytes);

/// Milliseconds with a unit that suits: "12.3 ms", "1.25 s", "830 us".
std::string time_text(double milliseconds);

}  // namespace flashtile::cli
