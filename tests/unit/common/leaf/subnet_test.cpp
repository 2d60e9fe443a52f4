#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>

#include "common/leaf/network.h"

namespace lockstep {
namespace {

bool contains(const char* network, const char* address) {
  sockaddr_storage storage{};
  auto& four = reinterpret_cast<sockaddr_in&>(storage);
  auto& six = reinterpret_cast<sockaddr_in6&>(storage);
  if (::inet_pton(AF_INET, address, &four.sin_addr) == 1) {
    storage.ss_family = AF_INET;
  } else {
    EXPECT_EQ(::inet_pton(AF_INET6, address, &six.sin6_addr), 1);
    storage.ss_family = AF_INET6;
  }
  return Subnet::parse(network).value().contains(reinterpret_cast<const sockaddr&>(storage));
}

TEST(Subnet, ContainsTheAddressesThatBeginWithItsBits) {
  EXPECT_TRUE(contains("10.1.0.0/16", "10.1.255.3"));
  EXPECT_FALSE(contains("10.1.0.0/16", "10.2.0.1"));
  EXPECT_TRUE(contains("10.1.2.64/27", "10.1.2.95"));
  EXPECT_FALSE(contains("10.1.2.64/27", "10.1.2.96"));
  EXPECT_TRUE(contains("10.1.2.3/32", "10.1.2.3"));
  EXPECT_FALSE(contains("10.1.2.3/32", "10.1.2.2"));
  EXPECT_TRUE(contains("0.0.0.0/0", "192.168.0.1"));
  EXPECT_FALSE(contains("0.0.0.0/0", "::1"));
  EXPECT_TRUE(contains("fd00::/8", "fd12:3456::1"));
  EXPECT_FALSE(contains("fd00::/8", "fe80::1"));
}

TEST(Subnet, RefusesWhatIsNotANetwork) {
  for (const char* text :
       {"", "10.1.0.0", "10.1/16", "10.1.0.0/33", "10.1.0.0/", "10.1.0.0/8x", "fd00::/129", "ib0/8"})
    EXPECT_FALSE(Subnet::parse(text)) << text;
}

TEST(Subnet, FindsThisMachinesAddressInTheFirstNetworkThatHasOne) {
  const Subnet loopback = Subnet::parse("127.0.0.0/8").value();
  const Subnet documentation = Subnet::parse("203.0.113.0/24").value();
  EXPECT_EQ(address_in({loopback}), "127.0.0.1");
  EXPECT_EQ(address_in({documentation, loopback}), "127.0.0.1");
  EXPECT_EQ(address_in({documentation}), "");
  EXPECT_EQ(address_in({}), "");
}

}  // namespace
}  // namespace lockstep
