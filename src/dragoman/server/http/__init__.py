"""HTTP as the server speaks it, without any API: exchanges, the protocol, the route table."""
