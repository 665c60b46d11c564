"""The bytes: uvicorn protocol with the relay extension, pooled engine client, companion link."""
