"""What adapters of frameworks share: chains of turns, of which one process at a time is the writer; and calls of tools behind a door."""
