"""The server of `embedded:///dir` addresses: a private Redis of this machine's user.

embedded            starts, shares and stops the server
server_supervisor   a small process between the owner (the process that started the server) and the
                    server
"""
