"""What is asked of the engine's speed beyond plain decoding: drafts, and a machine that is not its own."""
