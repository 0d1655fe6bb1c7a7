"""The wire format of Text Embeddings Inference, which its own operations and those of TGI at `/` and `/info` speak."""
