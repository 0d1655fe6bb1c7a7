"""`dragoman plan`: how many replicas a rate of requests needs."""
