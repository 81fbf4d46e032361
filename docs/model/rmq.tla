-------------------------------- MODULE rmq --------------------------------
(***************************************************************************)
(* The queue of one slot, its clients, and a replica that is behind.       *)
(*                                                                         *)
(* A script is one step (Run).  Its reply is another one (Receive), or is  *)
(* lost (LoseReply); then the client repeats the call under its number.  A *)
(* call that is lost on its way is one that has not run yet.               *)
(*                                                                         *)
(* The replica has an earlier state of the server, however old: Replicate  *)
(* brings it up to date at any moment, and a failover puts its state in    *)
(* place of the server's.  So a failover may cut the log of commands       *)
(* anywhere, but not below what WAIT has confirmed.                        *)
(*                                                                         *)
(* The constants under "rules" are TRUE in RMQ; a mutant sets one to FALSE.*)
(***************************************************************************)
EXTENDS Naturals, FiniteSets

CONSTANTS
    Messages, Consumers, Producer, None,
    Durable,            \* messages that are sent with durability=Replicated(1)
    Retries,            \* failed deliveries of a message, beyond the first one
    Faults,             \* how many may happen: lost replies, crashes, failovers
    \* rules
    Fence,              \* ack and nack compare the receipt
    Replay,             \* a repeated call is answered as the first one
    RollbackRemoves,    \* what is rolled back leaves the PrepareQueue
    RollsBack,          \* leases that ended are rolled back
    Wait                \* a durable send is confirmed when the replica has it

VARIABLES
    server, replica,    \* the data in Redis
    number,             \* of each client's session: the last one
    call,               \* of each client, while it has no answer
    reply,              \* to that call, on its way
    held,               \* the delivery that a consumer works on
    alive,              \* the consumers that have not crashed
    confirmed,          \* messages whose producer was told that they are stored
    told,               \* how often consumers were told that a message is settled
    lossy,              \* whether a failover has lost commands
    faults              \* that may still happen

clients == <<number, call, reply, held, alive>>
ghosts == <<confirmed, told>>
vars == <<server, replica, clients, ghosts, lossy, faults>>

Clients == Consumers \union {Producer}

Empty == [
    store    |-> {},                            \* messages that wait
    prepare  |-> [m \in Messages |-> None],     \* [receipt, ended] of what is in flight
    dead     |-> {},
    settled  |-> {},
    left     |-> [m \in Messages |-> Retries],  \* retries that remain
    sessions |-> [c \in Clients |-> [number |-> 0, answer |-> None]]]

Init ==
    /\ server = Empty
    /\ replica = Empty
    /\ number = [c \in Clients |-> 0]
    /\ call = [c \in Clients |-> None]
    /\ reply = [c \in Clients |-> None]
    /\ held = [c \in Consumers |-> None]
    /\ alive = Consumers
    /\ confirmed = {}
    /\ told = [m \in Messages |-> 0]
    /\ lossy = FALSE
    /\ faults = Faults

-----------------------------------------------------------------------------
(* Receipts.  One has the deadline in it, so a receipt that is given after *)
(* a failover is not one of those that the failover lost.  What nobody     *)
(* knows any more may be named again; so the model stays finite.           *)

KnownTo(data) ==
    {data.prepare[m].receipt : m \in {n \in Messages : data.prepare[n] # None}}
        \union {data.sessions[c].answer.receipt :
            c \in {d \in Consumers : data.sessions[d].answer # None}}

Known ==
    KnownTo(server) \union KnownTo(replica)
        \union {held[c].receipt : c \in {d \in Consumers : held[d] # None}}
        \union {call[c].receipt : c \in {d \in Consumers : call[d] # None}}
        \union {reply[c].receipt : c \in {d \in Consumers : reply[d] # None}}

NewReceipt == CHOOSE r \in 1..(Cardinality(Known) + 1) : r \notin Known

Holds(data, m, receipt) ==
    data.prepare[m] # None /\ data.prepare[m].receipt = receipt

-----------------------------------------------------------------------------
(* Scripts: what each does to the data.                                    *)

Stored(m) == [server EXCEPT !.store = @ \union {m}, !.left[m] = Retries]

Taken(m) == [server EXCEPT
    !.store = @ \ {m},
    !.prepare[m] = [receipt |-> NewReceipt, ended |-> FALSE]]

Acked(m) == [server EXCEPT !.prepare[m] = None, !.settled = @ \union {m}]

\* Back to the StoreQueue at the cost of a retry, or to the DeadQueue.
Failed(m, removes) == [server EXCEPT
    !.prepare[m] = IF removes THEN None ELSE @,
    !.store = IF server.left[m] > 0 THEN @ \union {m} ELSE @,
    !.dead = IF server.left[m] > 0 THEN @ ELSE @ \union {m},
    !.left[m] = IF @ > 0 THEN @ - 1 ELSE 0]

Answer(what, m, receipt) == [what |-> what, message |-> m, receipt |-> receipt]

\* The script has run: its data, and its answer under the number of its session.
Done(c, data, answer) ==
    /\ server' = [data EXCEPT !.sessions[c] = [number |-> number[c], answer |-> answer]]
    /\ reply' = [reply EXCEPT ![c] = answer]

RunFirst(c) ==
    LET m == call[c].message
        receipt == call[c].receipt
    IN  CASE call[c].verb = "send" -> Done(c, Stored(m), Answer("stored", m, 0))
          [] call[c].verb = "take" ->
                \* If another consumer was quicker, this one waits.
                \E n \in server.store : Done(c, Taken(n), Answer("taken", n, NewReceipt))
          [] OTHER ->
                IF Holds(server, m, receipt) \/ (~Fence /\ server.prepare[m] # None)
                THEN Done(c, IF call[c].verb = "ack" THEN Acked(m) ELSE Failed(m, TRUE),
                          Answer("done", m, receipt))
                ELSE /\ reply' = [reply EXCEPT ![c] = Answer("lost", m, receipt)]
                     /\ UNCHANGED server

\* A repeated take gives a delivery only as long as its receipt stands.
RunAgain(c) ==
    LET answer == server.sessions[c].answer
        gone == answer.what = "taken" /\ ~Holds(server, answer.message, answer.receipt)
    IN  /\ reply' = [reply EXCEPT ![c] = IF gone THEN [answer EXCEPT !.what = "lost"] ELSE answer]
        /\ UNCHANGED server

Run(c) ==
    /\ call[c] # None
    /\ reply[c] = None
    /\ IF Replay /\ server.sessions[c].number = number[c] THEN RunAgain(c) ELSE RunFirst(c)
    /\ UNCHANGED <<replica, number, call, held, alive, ghosts, lossy, faults>>

\* By whoever comes first.  It has no session: it goes on with what is left.
Rollback ==
    \E m \in Messages :
        /\ RollsBack
        /\ server.prepare[m] # None
        /\ server.prepare[m].ended
        /\ server' = Failed(m, RollbackRemoves)
        /\ UNCHANGED <<replica, clients, ghosts, lossy, faults>>

LeaseEnds(m) ==
    /\ server.prepare[m] # None
    /\ ~server.prepare[m].ended
    /\ server' = [server EXCEPT !.prepare[m].ended = TRUE]
    /\ UNCHANGED <<replica, clients, ghosts, lossy, faults>>

-----------------------------------------------------------------------------
(* Clients: one call at a time.                                            *)

Calls(c, verb, m, receipt) ==
    /\ call[c] = None
    /\ call' = [call EXCEPT ![c] = [verb |-> verb, message |-> m, receipt |-> receipt]]
    /\ number' = [number EXCEPT ![c] = @ + 1]
    /\ UNCHANGED <<server, replica, reply, held, alive, ghosts, lossy, faults>>

Send == \E m \in Messages \ confirmed : Calls(Producer, "send", m, 0)

\* A take that found nothing would be made again, so one is made when something waits.
Take(c) ==
    /\ c \in alive
    /\ held[c] = None
    /\ server.store # {}
    /\ Calls(c, "take", None, 0)

Settle(c) ==
    /\ c \in alive
    /\ held[c] # None
    /\ \E verb \in {"ack", "nack"} : Calls(c, verb, held[c].message, held[c].receipt)

\* WAIT: the replica has executed the send.
Confirms(m) ==
    m \in Durable /\ Wait /\ faults > 0 => replica.sessions[Producer].number = number[Producer]

Receive(c) ==
    /\ reply[c] # None
    /\ LET answer == reply[c] IN
        /\ answer.what = "stored" => Confirms(answer.message)
        /\ confirmed' = IF answer.what = "stored"
                        THEN confirmed \union {answer.message} ELSE confirmed
        /\ told' = IF call[c].verb = "ack" /\ answer.what = "done"
                   THEN [told EXCEPT ![answer.message] = @ + 1] ELSE told
        /\ held' = IF c = Producer THEN held
                   ELSE [held EXCEPT ![c] = IF answer.what = "taken" THEN answer ELSE None]
    /\ reply' = [reply EXCEPT ![c] = None]
    /\ call' = [call EXCEPT ![c] = None]
    /\ UNCHANGED <<server, replica, number, alive, lossy, faults>>

-----------------------------------------------------------------------------
(* Replication and faults.  After the last fault it does not matter what    *)
(* the replica has.                                                        *)

Replicate ==
    /\ faults > 0
    /\ replica # server
    /\ replica' = server
    /\ UNCHANGED <<server, clients, ghosts, lossy, faults>>

Fault ==
    /\ faults > 0
    /\ faults' = faults - 1
    /\ replica' = IF faults = 1 THEN Empty ELSE replica

LoseReply(c) ==
    /\ Fault
    /\ reply[c] # None
    /\ reply' = [reply EXCEPT ![c] = None]
    /\ UNCHANGED <<server, number, call, held, alive, ghosts, lossy>>

\* One consumer stays.
Crash(c) ==
    /\ Fault
    /\ c \in alive
    /\ alive # {c}
    /\ alive' = alive \ {c}
    /\ call' = [call EXCEPT ![c] = None]
    /\ reply' = [reply EXCEPT ![c] = None]
    /\ held' = [held EXCEPT ![c] = None]
    /\ UNCHANGED <<server, number, ghosts, lossy>>

Failover ==
    /\ Fault
    /\ server' = replica
    /\ lossy' = (lossy \/ replica # server)
    \* A durable send that still waits for the replica is repeated.
    /\ reply' = [reply EXCEPT ![Producer] =
        IF @ # None /\ ~Confirms(@.message) THEN None ELSE @]
    /\ UNCHANGED <<number, call, held, alive, ghosts>>

Next ==
    \/ Send
    \/ \E c \in Consumers : Take(c) \/ Settle(c) \/ Crash(c)
    \/ \E c \in Clients : Run(c) \/ Receive(c) \/ LoseReply(c)
    \/ \E m \in Messages : LeaseEnds(m)
    \/ Rollback
    \/ Replicate
    \/ Failover

Fairness ==
    /\ WF_vars(Send)
    /\ \A c \in Consumers : WF_vars(Take(c)) /\ WF_vars(Settle(c))
    /\ \A c \in Clients : WF_vars(Run(c)) /\ WF_vars(Receive(c))
    /\ \A m \in Messages : WF_vars(LeaseEnds(m))
    /\ WF_vars(Rollback)
    /\ WF_vars(Replicate)

Spec == Init /\ [][Next]_vars /\ Fairness

-----------------------------------------------------------------------------
(* Safety.                                                                 *)

Places(m) ==
    (IF m \in server.store THEN 1 ELSE 0) + (IF server.prepare[m] # None THEN 1 ELSE 0)
        + (IF m \in server.dead THEN 1 ELSE 0) + (IF m \in server.settled THEN 1 ELSE 0)

\* A message is in at most one queue, or settled.
OnePlace == \A m \in Messages : Places(m) <= 1

\* A confirmed message is in exactly one of them; a failover that loses commands may lose it,
\* unless WAIT has confirmed it.
ConfirmedIsKept == \A m \in confirmed : Places(m) = 1 \/ (lossy /\ m \notin Durable)

\* A message is settled twice only if a failover has lost the first time.
SettledOnce == \A m \in Messages : told[m] > 1 => lossy

\* Two consumers never hold one delivery.
OneHolder ==
    \A c, d \in Consumers :
        c # d /\ held[c] # None /\ held[d] # None => held[c].receipt # held[d].receipt

\* A message is dead when its retries are used up, not before.
DeadAtTheEnd == \A m \in server.dead : server.left[m] = 0

CalledBy(verb, m) ==
    \E c \in Consumers :
        /\ call[c] # None
        /\ call[c].verb = verb
        /\ call[c].message = m
        /\ Holds(server, m, call[c].receipt)

\* Only the receipt that stands settles a message ...
StaleAckChangesNothing ==
    [][\A m \in Messages :
        m \in server'.settled \ server.settled => CalledBy("ack", m)]_vars

\* ... and only it, or the end of the lease, gives one back.
StaleNackChangesNothing ==
    [][\A m \in Messages :
        (server.prepare[m] # None /\ server'.prepare[m] = None /\ server' # replica)
            => \/ server.prepare[m].ended
               \/ CalledBy("nack", m)
               \/ CalledBy("ack", m)]_vars

(* Liveness: faults are bounded, so they stop.                             *)

Finished(m) == m \in server.settled \union server.dead

\* Each message that was confirmed is settled or dead at last.
SentIsFinished ==
    \A m \in Messages : (m \in confirmed) ~> (Finished(m) \/ (lossy /\ m \notin Durable))

\* And stays so.
FinishedForGood ==
    \A m \in Messages : <>[](Finished(m) \/ (lossy /\ m \notin Durable))
=============================================================================
