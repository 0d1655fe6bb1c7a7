"""Decides which network addresses clients may make a server connect to.

Source: IANA's registries of special-purpose addresses, for IPv4 and IPv6; RFC 6052 for NAT64.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

Address = IPv4Address | IPv6Address

_NOT_PUBLIC_V4 = tuple(
    IPv4Network(net)
    for net in (
        "0.0.0.0/8",  # this network; on Linux 0.0.0.0 is the machine itself
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # behind a carrier's NAT; one cloud's metadata is at 100.100.100.200
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # the host of a virtual machine in one cloud, with its metadata
        "169.254.0.0/16",  # link-local, with the clouds' metadata at 169.254.169.254
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # relays of 6to4
        "192.168.0.0/16",  # private
        "198.18.0.0/15",  # benchmarking
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
)

# Everything else in IPv6 is loopback, link-local, private (with metadata at fd00:ec2::254), multicast or not assigned.
_UNICAST_V6 = IPv6Network("2000::/3")
_NOT_PUBLIC_V6 = tuple(
    IPv6Network(net)
    for net in (
        "2001::/23",  # protocol assignments: Teredo, benchmarking, ORCHID
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4: an IPv4 address in disguise
        "3fff::/20",  # documentation
    )
)
_NAT64 = IPv6Network("64:ff9b::/96")  # for networks without IPv4


def is_public(address: Address) -> bool:
    """True for an address of the public internet. Forms that hide an IPv4 address are not; NAT64 counts as that address."""
    if isinstance(address, IPv4Address):
        return not any(address in net for net in _NOT_PUBLIC_V4)
    if address.scope_id is not None:
        return False
    if address in _NAT64:
        return is_public(IPv4Address(int(address) & 0xFFFF_FFFF))
    return address in _UNICAST_V6 and not any(address in net for net in _NOT_PUBLIC_V6)
