"""`dragoman plan`: the number of replicas for a rate of requests."""
