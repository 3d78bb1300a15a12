"""The gateway: one replica of the fleet's front, which relays requests under leased permits."""
