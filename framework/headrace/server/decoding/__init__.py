"""Decoding and publishing of bodies: small ones in the event loop, and large ones in a separate process."""
