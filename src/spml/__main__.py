"""python -m spml"""

from .cli import main

main()
