// Cards and rows to write, read and damage.
#ifndef VMMSHARE_TESTS_JOB_SAMPLES_H_
#define VMMSHARE_TESTS_JOB_SAMPLES_H_

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "fabric/job_card.h"
#include "fabric/job_matrix.h"

namespace vmm::testing {

inline fabric::JobCard SampleCard(std::uint32_t rank, std::uint32_t ranks) {
  fabric::JobCard card;
  card.rank = rank;
  card.ranks = ranks;
  card.host_name = absl::StrCat("node", rank);
  card.boot_id.fill(static_cast<std::uint8_t>(rank + 1));
  card.device.fill(static_cast<std::uint8_t>(rank));
  card.device[15] = 1;
  card.device_name = "NVIDIA H100 80GB HBM3";
  card.domain = fabric::JobCard::Domain{{1, 2, 3}, 7};
  card.requested_size = 1;
  card.mapped_size = 2 << 20;
  card.nonce.fill(0x5a);
  card.offers = {
      {CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, "vmmshare:2:abc", {}},
      {CU_MEM_HANDLE_TYPE_FABRIC,
       "",
       {absl::StatusCode::kPermissionDenied,
        {"no-channel", "there is no channel", "mknod"}}}};
  return card;
}

// All others are reached by fabric handles, and fd is refused.
inline fabric::JobRow SampleRow(std::uint32_t rank, std::uint32_t ranks) {
  const std::vector<fabric::JobTry> others = {
      {CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
       {absl::StatusCode::kFailedPrecondition,
        {"other-host", "two hosts", "Use fabric handles."}}},
      {CU_MEM_HANDLE_TYPE_FABRIC, {}}};
  fabric::JobRow row(rank);
  row.Append(others, rank);
  row.Append({});
  row.Append(others, ranks - rank - 1);
  return row;
}

}  // namespace vmm::testing

#endif  // VMMSHARE_TESTS_JOB_SAMPLES_H_
