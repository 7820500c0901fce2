#include "common/base/printable.h"

#include <string>

#include "common/base/log.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace egeria {
namespace {

using ::testing::EndsWith;

TEST(Printable, TextOfAnyLanguageStaysAsItIs) {
  for (const std::string text : {"", "layer1.0 (conv)", "Grüße", "日本語", "😀", "a\\nb", "\"quoted\" {x=\"y\"}"}) {
    EXPECT_EQ(Printable(text), text);
  }
}

TEST(Printable, WhatATerminalObeysIsEscaped) {
  EXPECT_EQ(Printable("a\nb\rc\td"), "a\\nb\\x0dc\\x09d");
  EXPECT_EQ(Printable("\x1b[31mred\x07\x7f"), "\\x1b[31mred\\x07\\x7f");
  EXPECT_EQ(Printable(std::string("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(Printable("\xc2\x9b"
                      "31m"),
            "\\u009b31m")
      << "CSI as one character";
}

TEST(Printable, WhatMisleadsTheEyeIsEscaped) {
  EXPECT_EQ(Printable("\xe2\x80\xae txt.exe"), "\\u202e txt.exe");
  EXPECT_EQ(Printable("a\xe2\x80\xa8"
                      "b\xe2\x80\x8b"
                      "c\xef\xbb\xbf"),
            "a\\u2028b\\u200bc\\ufeff");
  EXPECT_EQ(Printable("\xe2\x81\xa6x\xf3\xa0\x81\x81"), "\\u2066x\\ue0041");
}

TEST(Printable, BytesThatAreNoTextAreEscaped) {
  EXPECT_EQ(Printable("\xff\xfe\x80"), "\\xff\\xfe\\x80");
  EXPECT_EQ(Printable("\xc0\xaf"), "\\xc0\\xaf") << "a longer way to write a slash";
  EXPECT_EQ(Printable("\xed\xa0\x80"), "\\xed\\xa0\\x80") << "half of a pair";
  EXPECT_EQ(Printable("\xe2\x80"), "\\xe2\\x80") << "cut off";
}

TEST(Printable, ALogLineIsOneLine) {
  ::testing::internal::CaptureStderr();
  LogWarning("job 'a\n2026-01-01 00:00:00.000 egeria-controller error forged\x1b[2J'");
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              EndsWith("job 'a\\n2026-01-01 00:00:00.000 egeria-controller error forged\\x1b[2J'\n"));
}

}  // namespace
}  // namespace egeria
