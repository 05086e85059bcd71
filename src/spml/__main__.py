"""python -m spml"""

from spml.cli import main

main()
