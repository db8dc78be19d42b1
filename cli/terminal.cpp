// SPDX-License-Identifier: Apache-2.0
#include "terminal.hpp"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>

namespace flashtile::cli {
namespace {

constexpr auto kRefresh = std::chrono::milliseconds(100);
constexpr size_t kProgressWidth = 100;

bool looks_like_number(const std::string& cell) {
  if (cell.empty()) return false;
  const bool has_digit = cell.find_first_of("0123456789") != std::string::npos;
  return (has_digit && cell.find_first_not_of("0123456789.+-e%x") == std::string::npos) ||
         cell == "-" || cell == "inf" || cell == "nan";
}

}  // namespace

void Table::print(std::ostream& out) const {
  std::vector<size_t> widths;
  std::vector<bool> is_right;
  for (const auto& row : rows_) {
    widths.resize(std::max(widths.size(), row.size()), 0);
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  is_right.assign(widths.size(), rows_.size() > 1);
  for (size_t r = 1; r < rows_.size(); ++r) {
    for (size_t i = 0; i < rows_[r].size(); ++i) {
      if (!rows_[r][i].empty() && !looks_like_number(rows_[r][i])) is_right[i] = false;
    }
  }
  for (const auto& row : rows_) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string space(widths[i] - row[i].size(), ' ');
      line += (i == 0 ? "" : "  ") + (is_right[i] ? space + row[i] : row[i] + space);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out << line << '\n';
  }
}

Progress::Progress() : is_terminal_(::isatty(STDERR_FILENO) == 1) {}

void Progress::show(size_t done, size_t total, std::string_view text) {
  const auto now = std::chrono::steady_clock::now();
  if (!is_terminal_ || (is_shown_ && now - last_ < kRefresh)) return;
  last_ = now;
  is_shown_ = true;
  std::string line = std::to_string(done) + "/" + std::to_string(total) + " " + std::string(text);
  if (line.size() > kProgressWidth) line.resize(kProgressWidth);
  std::cerr << "\r\x1b[K" << line << std::flush;
}

void Progress::clear() {
  if (!is_shown_) return;
  std::cerr << "\r\x1b[K" << std::flush;
  is_shown_ = false;
}

std::string number_text(double value, int digits) {
  char text[40];
  std::snprintf(text, sizeof text, "%.*g", digits, value);
  if (std::abs(value) >= 1000 && std::abs(value) < 1e7 && std::isfinite(value)) {
    std::snprintf(text, sizeof text, "%.0f", value);
  }
  return text;
}

std::string bytes_text(double bytes) {
  const char* const kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < std::size(kUnits); ++unit) bytes /= 1024;
  char text[40];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.1f %s", bytes, kUnits[unit]);
  return text;
}

std::string time_text(double milliseconds) {
  if (milliseconds < 1) return number_text(milliseconds * 1000) + " us";
  if (milliseconds < 1000) return number_text(milliseconds) + " ms";
  return number_text(milliseconds / 1000) + " s";
}

}  // namespace flashtile::cli
