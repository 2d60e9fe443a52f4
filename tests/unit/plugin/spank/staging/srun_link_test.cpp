#include "plugin/spank/staging/srun_link.h"

#include <gtest/gtest.h>

#include "common/leaf/error.h"

namespace lockstep::spank {
namespace {

TEST(SrunLink, IsDecodedAsItWasEncoded) {
  const SrunLink link{4711, std::string(64, 'a'), "head.cluster", "/home/a, b/c"};
  const SrunLink decoded = SrunLink::decode(link.encode());
  EXPECT_EQ(decoded.port, link.port);
  EXPECT_EQ(decoded.key, link.key);
  EXPECT_EQ(decoded.host, link.host);
  EXPECT_EQ(decoded.folder, link.folder);
}

TEST(SrunLink, RefusesOtherText) {
  const std::string key(64, 'a');
  EXPECT_NO_THROW(SrunLink::decode("1," + key + ",h,/"));
  for (const std::string& text : {std::string(), std::string(","), std::string("1,,h,/"), "x," + key + ",h,/",
                                  "70000," + key + ",h,/", "1," + key + ",h h,/", "1," + key + ",h,relative",
                                  "1," + key.substr(1) + "G,h,/", "1," + key + ",h"}) {
    EXPECT_THROW(SrunLink::decode(text), Error) << text;
  }
}

}  // namespace
}  // namespace lockstep::spank
