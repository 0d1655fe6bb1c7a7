"""The wire format of OpenAI's API, which several APIs speak."""
