"""One module per API family: endpoint objects on hot routes, error shapes."""
