"""``python docs/making``: write what is made in docs/."""

import pages

pages.write()
