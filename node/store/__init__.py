"""What a node remembers on disk: the ledger of passes, rollouts and peers (SQLite), and the blobs they name (files)."""
