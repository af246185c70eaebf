"""Memory that computes: one channel's command sequencers."""
