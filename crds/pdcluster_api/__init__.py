"""The PDCluster resource and the models programs hand to each other."""
