"""Send commands to a single server.

blocking, asyncio   the transports
driver              the common code of both, written once
server_commands     the rules: load missing scripts, repeat commands, explain errors
retry_deadline      how long to repeat a command
durability          waits until replicas or disks have the messages
subscription        waits for signals
"""
