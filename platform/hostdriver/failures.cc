#include "platform/hostdriver/failures.h"

#include <memory>

#include "platform/hostdriver/entry_points.h"
#include "platform/hostdriver/environment.h"
#include "platform/hostdriver/error_names.h"

namespace vmm::hostdriver {

Failures& Failures::Get() {
  static Failures& failures = *[] {
    auto made = std::make_unique<Failures>();
    const char* rules = Value("VMMSHARE_HOST_FAIL");
    if (rules != nullptr && !made->Set(rules)) {
      BadValue("VMMSHARE_HOST_FAIL", rules,
               "rules such as cuMemMap:3:OUT_OF_MEMORY, separated by ';'");
    }
    return made.release();
  }();
  return failures;
}

bool Failures::Parse(std::string_view text, Rule* rule) {
  const std::vector<std::string_view> parts = Split(text, ':');
  if (parts.size() != 3) return false;
  rule->entry = std::string(parts[0]);
  if (rule->entry != "*" && !IsEntry(rule->entry)) return false;
  std::string_view nth = parts[1];
  if (!nth.empty() && nth.back() == '+') {
    rule->onwards = true;
    nth.remove_suffix(1);
  }
  rule->nth = ParseNumber<std::uint64_t>(nth).value_or(0);
  if (rule->nth == 0) return false;
  return FindResult("CUDA_ERROR_" + std::string(parts[2]), &rule->result);
}

bool Failures::Set(std::string_view rules) {
  std::vector<Rule> parsed;
  while (!rules.empty()) {
    const std::size_t end = rules.find(';');
    Rule rule;
    if (!Parse(rules.substr(0, end), &rule)) return false;
    parsed.push_back(std::move(rule));
    rules.remove_prefix(end == std::string_view::npos ? rules.size() : end + 1);
  }
  const std::lock_guard<std::mutex> lock(mu_);
  rules_ = std::move(parsed);
  calls_.clear();
  all_ = 0;
  return true;
}

CUresult Failures::Count(const char* entry) {
  const std::lock_guard<std::mutex> lock(mu_);
  auto found = calls_.find(std::string_view(entry));
  if (found == calls_.end()) found = calls_.emplace(entry, 0).first;
  const std::uint64_t own = ++found->second;
  const std::uint64_t all = ++all_;
  for (const Rule& rule : rules_) {
    if (rule.entry != "*" && rule.entry != entry) continue;
    const std::uint64_t n = rule.entry == "*" ? all : own;
    if (n == rule.nth || (rule.onwards && n > rule.nth)) return rule.result;
  }
  return CUDA_SUCCESS;
}

std::uint64_t Failures::Calls(const std::string& entry) const {
  const std::lock_guard<std::mutex> lock(mu_);
  if (entry == "*") return all_;
  const auto found = calls_.find(entry);
  return found == calls_.end() ? 0 : found->second;
}

}  // namespace vmm::hostdriver
