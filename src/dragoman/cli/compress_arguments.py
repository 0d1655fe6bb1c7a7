"""stub for now"""
def compress_help(): return ""
def read_compress_arguments(words): return None, []
