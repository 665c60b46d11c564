"""``python -m pdcluster_sim``."""

from pdcluster_sim.main import main

if __name__ == "__main__":
    main()
