"""The network of libp2p: hivemind's daemon for discovery and bulk, py-libp2p's GossipSub for announcements.

Importing this package loads neither of the two, nor torch, which hivemind pulls in: that happens when a transport
starts.
"""
