"""HTTP as the server speaks it, without any API: exchanges and the protocol."""
