#include "fabric/pmix_answer.h"

namespace vmm::fabric {

void* PmixAnswer::Hold(const std::shared_ptr<PmixAnswer>& answer) {
  return new std::shared_ptr<PmixAnswer>(answer);
}

std::shared_ptr<PmixAnswer> PmixAnswer::TakeBack(void* held) {
  const std::unique_ptr<std::shared_ptr<PmixAnswer>> own(
      static_cast<std::shared_ptr<PmixAnswer>*>(held));
  return std::move(*own);
}

void PmixAnswer::Done(pmix::Status status, void* held) {
  TakeBack(held)->Give({.status = status});
}

void PmixAnswer::GotValue(pmix::Status status, pmix::Value* value, void* held) {
  PmixReply content{.status = status};
  if (status == pmix::kSuccess && value != nullptr) {
    content.type = value->type;
    if (value->type == pmix::kByteObject) {
      const pmix::ByteObject& from = value->data.bytes;
      content.bytes.assign(from.bytes, from.bytes + from.size);
    } else if (value->type == pmix::kUint32) {
      content.number = value->data.uint32;
    } else if (value->type == pmix::kUint16) {
      content.number = value->data.uint16;
    }
  }
  TakeBack(held)->Give(std::move(content));
}

}  // namespace vmm::fabric
