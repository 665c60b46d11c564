"""The proxy: one client request becomes a prefill leg, a hand-off and a decode leg."""
