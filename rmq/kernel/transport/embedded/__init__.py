"""`embedded:///dir`: a private Redis of this machine's user.

embedded            starts, shares and stops the server
server_supervisor   the small process between the owner and its server
"""
