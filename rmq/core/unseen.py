"""Characters that a reader cannot see, or that change the direction of the text around them.

Bodies, errors, headers and names come from others: the command line and the console write these
characters as their codes. Control characters of ASCII are not among them: which of those may stay
is for the terminal, or the page, to say.
"""

UNSEEN = (  # the inside of a character class of a regular expression
    "\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e007f"
)
