#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tests/unit/vmm_ticket_samples.h"
#include "vmm/share/ticket.h"

namespace vmm {
namespace {

using ::testing::HasSubstr;
using testing::SampleTicket;

constexpr char kAlphabet[] =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
constexpr absl::string_view kPrefix = "vmmshare:2:";

AddressedTicket Sample() {
  AddressedTicket sample{SampleTicket(),
                         {{}, Access::kRead, "/run/user/1000/vmmshare/abc"}};
  sample.invitation.key.place.fill(0xb1);
  sample.invitation.key.secret.fill(0xc2);
  return sample;
}

absl::Status Parsed(absl::string_view text) {
  return ParseTicketString(text).status();
}

void ExpectNoTicket(absl::string_view text, const std::string& words) {
  const absl::Status status = Parsed(text);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument)
      << text << ": " << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(words));
}

// A string of any ticket bytes and address bytes, with checksums that fit.
std::string Forged(std::vector<std::uint8_t> bytes, const std::string& address,
                   std::size_t stated, std::uint8_t access = 3) {
  WireWriter out(bytes);
  for (std::uint8_t i = 0; i < 24; ++i) out.Put(i);
  out.Put(access);
  out.Put<std::uint16_t>(static_cast<std::uint16_t>(stated));
  bytes.insert(bytes.end(), address.begin(), address.end());
  out.Put<std::uint32_t>(Crc32c(bytes));
  return absl::StrCat(kPrefix, absl::WebSafeBase64Escape(
                                   std::string(bytes.begin(), bytes.end())));
}

// Put together by another program than vmmshare.
TEST(TicketString, HasTheTextThatTheFormatSays) {
  const std::string expected =
      "vmmshare:2:"
      "Vk1NU0hBUkUBAMAAAQEBAAAAYAAAAAAAAABAAAAAAAACAAAABwAAAAABAgMEBQYHCAkKCwwN"
      "Dg-Id2ZVRDMiERAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vAAAAAAAAAADx_18A"
      "AAAAAGdwdS1ob3N0LmV4YW1wbGUAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
      "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAADQnKWSsbGxsbGxsbHCwsLCwsLCwsLCwsLCwsLC"
      "ARsAL3J1bi91c2VyLzEwMDAvdm1tc2hhcmUvYWJjOfonYg";
  EXPECT_EQ(FormatTicketString(Sample()), expected);
  const auto parsed = ParseTicketString(expected);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(*parsed, Sample());
}

TEST(TicketString, ComesBackForAddressesOfEveryLength) {
  for (std::size_t length : {1, 2, 3, 4, 100, 107, 1023, 1024}) {
    AddressedTicket ticket = Sample();
    ticket.invitation.address = std::string(length, 'p');
    const std::string text = FormatTicketString(ticket);
    EXPECT_EQ(text.find_first_not_of(kAlphabet, kPrefix.size()),
              std::string::npos)
        << "a shell or a file name would mind";
    const auto parsed = ParseTicketString(text);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(*parsed, ticket);
  }
}

TEST(TicketString, MayHaveWhiteSpaceAround) {
  const std::string text = FormatTicketString(Sample());
  for (const std::string& spaced :
       {absl::StrCat(text, "\n"), absl::StrCat(" \t\r\n", text, "\r\n\n "),
        absl::StrCat("\v\f", text)}) {
    const auto parsed = ParseTicketString(spaced);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(*parsed, Sample());
  }
}

TEST(TicketString, WithWhiteSpaceInsideIsRefused) {
  const std::string text = FormatTicketString(Sample());
  for (std::size_t at = 1; at < text.size(); ++at) {
    for (const char* space : {" ", "\n", "\t"}) {
      std::string broken = text;
      broken.insert(at, space);
      ASSERT_TRUE(absl::IsInvalidArgument(Parsed(broken))) << at;
    }
  }
}

// What a terminal, a mail or a shell makes of it, and never what it opens by.
TEST(TicketString, SaysWhichOfItsCharactersIsNone) {
  const std::string text = FormatTicketString(Sample());
  const std::string size = absl::StrCat(text.size() + 1, " characters");
  ExpectNoTicket(
      absl::StrCat(text.substr(0, 80), "\n", text.substr(80)),
      absl::StrCat("of its ", size, ", number 81, \"\\n\", is none"));
  ExpectNoTicket(absl::StrCat(text, "'"),
                 absl::StrCat(", number ", text.size() + 1, ", \"\\'\", is"));
  ExpectNoTicket(text.substr(0, 52), "its 52 characters are no whole URL-safe");
}

TEST(TicketString, WithEveryCharacterChangedToEveryOtherIsRefused) {
  const std::string text = FormatTicketString(Sample());
  int tried = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    for (char c : absl::string_view(kAlphabet)) {
      if (c == text[at]) continue;
      std::string changed = text;
      changed[at] = c;
      const absl::Status status = Parsed(changed);
      ++tried;
      // "vmmshare:3:" is another version, and said so.
      const bool in_version = at == kPrefix.size() - 2 && c >= '1' && c <= '9';
      ASSERT_EQ(status.code(), in_version ? absl::StatusCode::kUnimplemented
                                          : absl::StatusCode::kInvalidArgument)
          << at << " to " << c << ": " << status;
    }
  }
  EXPECT_GT(tried, 19000);
}

TEST(TicketString, CutAtEveryCharacterIsRefused) {
  const std::string text = FormatTicketString(Sample());
  for (std::size_t size = 0; size < text.size(); ++size) {
    const absl::Status status = Parsed(text.substr(0, size));
    ASSERT_TRUE(absl::IsInvalidArgument(status)) << size << ": " << status;
  }
}

TEST(TicketString, WithMoreBehindItIsRefused) {
  const std::string text = FormatTicketString(Sample());
  for (const char* more : {"A", "AA", "AAAA", "=", "==", ":", "."}) {
    ASSERT_TRUE(absl::IsInvalidArgument(Parsed(text + more))) << more;
  }
  ExpectNoTicket(text + text, "");
}

TEST(TicketString, OfAnotherSchemeIsRefused) {
  const std::string text = FormatTicketString(Sample());
  ExpectNoTicket("", "it begins with \"\"");
  ExpectNoTicket("VMMSHARE:2:AAAA", "it begins with \"VMMSHARE:2:AAAA\"");
  ExpectNoTicket("http://example.com", "begins with \"http://example.c\"");
  ExpectNoTicket(absl::StrCat("x", text), "it begins with \"xvmmshare");
  ExpectNoTicket(std::string("\x1b[2J\0\n", 6), "\\x1b[2J\\x00");
}

TEST(TicketString, OfAnotherVersionSaysWhatToDo) {
  for (const char* version : {"1", "3", "10", "65535"}) {
    const absl::Status status =
        Parsed(absl::StrCat("vmmshare:", version, ":anything at all"));
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(absl::StrCat("has version ", version,
                                       "; this vmmshare reads version 2.")));
  }
}

TEST(TicketString, OfNoVersionIsRefused) {
  for (const char* text :
       {"vmmshare:", "vmmshare::", "vmmshare:0:", "vmmshare:-1:", "vmmshare:2",
        "vmmshare:12", "vmmshare:01:AAAA", "vmmshare:x:AAAA",
        "vmmshare:123456:AAAA", "vmmshare: 2:AAAA"}) {
    ExpectNoTicket(text, "not a usable ticket string");
  }
}

TEST(TicketString, OfANewerTicketInsideSaysWhatToDo) {
  std::vector<std::uint8_t> bytes = EncodeTicket(SampleTicket());
  bytes[8] = 2;
  testing::RepairChecksum(bytes);
  EXPECT_TRUE(absl::IsUnimplemented(Parsed(Forged(bytes, "/x", 2))));
}

TEST(TicketString, WithADamagedTicketInsideIsRefused) {
  std::vector<std::uint8_t> bytes = EncodeTicket(SampleTicket());
  bytes[100] = 1;  // And its checksum as it was.
  ExpectNoTicket(Forged(bytes, "/x", 2), "checksum 0x");
}

TEST(TicketString, WithAnAddressOfAWrongLengthIsRefused) {
  const std::vector<std::uint8_t> bytes = EncodeTicket(SampleTicket());
  ASSERT_TRUE(Parsed(Forged(bytes, "/x", 2)).ok()) << "the forger works";
  ExpectNoTicket(Forged(bytes, "", 0), "");
  ExpectNoTicket(Forged(bytes, "/x", 0), "address has 0 bytes");
  ExpectNoTicket(Forged(bytes, "/x", 1), "address has 1 bytes");
  ExpectNoTicket(Forged(bytes, "/x", 3), "address has 3 bytes");
  ExpectNoTicket(Forged(bytes, "/x", 65535), "address has 65535 bytes");
  ExpectNoTicket(Forged(bytes, std::string(1025, 'a'), 1025), "1025 bytes");
  EXPECT_TRUE(Parsed(Forged(bytes, std::string(1024, 'a'), 1024)).ok());
}

// With a checksum that fits. The least has a ticket, a key, the access, a
// length, one byte of an address and the checksum.
TEST(TicketString, OfTooFewBytesSaysHowMany) {
  constexpr std::size_t kLeast = kTicketBytes + 24 + 1 + 2 + 1 + 4;
  for (std::size_t size = 4; size < kLeast; ++size) {
    std::vector<std::uint8_t> bytes(size - 4, 1);
    WireWriter(bytes).Put<std::uint32_t>(Crc32c(bytes));
    ExpectNoTicket(absl::StrCat(kPrefix, absl::WebSafeBase64Escape(std::string(
                                             bytes.begin(), bytes.end()))),
                   absl::StrCat("it holds only ", size, " bytes"));
  }
  EXPECT_TRUE(Parsed(Forged(EncodeTicket(SampleTicket()), "x", 1)).ok());
}

TEST(TicketString, ForNoAccessIsRefused) {
  const std::vector<std::uint8_t> bytes = EncodeTicket(SampleTicket());
  for (int access = 0; access < 256; ++access) {
    const bool is_one = access == 1 || access == 3;
    EXPECT_EQ(
        Parsed(Forged(bytes, "/x", 2, static_cast<std::uint8_t>(access))).ok(),
        is_one)
        << access;
  }
}

TEST(TicketString, OfManyMegabytesIsRefusedQuickly) {
  ExpectNoTicket(absl::StrCat(kPrefix, std::string(8 << 20, 'A')), "");
  ExpectNoTicket(std::string(8 << 20, ' '), "");
}

}  // namespace
}  // namespace vmm
