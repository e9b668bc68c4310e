"""What a model is trained on: examples made of shards, each a function of its index."""
