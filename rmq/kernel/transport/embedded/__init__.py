"""The server of `embedded:///dir` addresses: a private Redis of this machine's user.

embedded            starts, shares and stops the server
server_supervisor   a small process that stops the server when the owner ends (the owner is the
                    process that started the server)
"""
