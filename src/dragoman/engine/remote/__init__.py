"""The engine that sends requests to servers elsewhere: any that answers OpenAI's completions."""
