#include "common/config/values.h"

#include <string>

#include "gtest/gtest.h"

namespace egeria::config {
namespace {

TEST(Part, IsReadAsANumberOrAsPercents) {
  Part part;
  for (const auto& [text, value] : {std::pair<std::string, double>{"0.2", 0.2},
                                    {"20%", 0.2},
                                    {"12.5%", 0.125},
                                    {"0", 0.0},
                                    {"1", 1.0},
                                    {"100%", 1.0}}) {
    EXPECT_TRUE(Parse({text}, &part).ok()) << text;
    EXPECT_DOUBLE_EQ(part.value, value) << text;
    const Part before = part;
    EXPECT_TRUE(Parse(Format(before), &part).ok());
    EXPECT_EQ(part, before);
  }
}

TEST(Part, IsBetweenNothingAndAll) {
  Part part{0.5};
  for (const std::string text : {"", "%", "20 percent", "-0.1", "-5%", "1.1", "101%", "nan", "20%%"}) {
    EXPECT_FALSE(Parse({text}, &part).ok()) << text;
  }
  EXPECT_FALSE(Parse({"0.1", "0.2"}, &part).ok());
  EXPECT_EQ(part.value, 0.5);
}

}  // namespace
}  // namespace egeria::config
