"""``python -m pdcluster_operator``."""

from pdcluster_operator.main import main

main()
