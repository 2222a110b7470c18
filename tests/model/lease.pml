/* The lease of a pool's blocks, as vmm/pool/{share_table,shared_table_view,
 * domain,core_reuse} have it: who may use a block when, and when its memory may
 * be handed out again.
 *
 * An owner has two pieces of memory and two records that importers read. To
 * share a block is to write a record with a generation that none had before. An
 * importer with a ticket holds the slot, then looks whether the record still
 * has the ticket's generation, and works on the block while it holds. The owner
 * withdraws the record, then looks at the holds, and hands the memory out again
 * when there are none.
 *
 * Importers are killed anywhere, hang up with or without a goodbye, and try any
 * ticket that was ever made, at any time and again: so tickets that are late,
 * lost, doubled or stolen are all in it. A goodbye that is lost is a hang-up
 * without one. A statement is one access to shared memory; the code has these
 * in a sequentially consistent order where that matters.
 *
 * What must hold, in every order of all steps:
 *   1. A ticket leads to what it was made for, or to a refusal.
 *   2. Memory is not handed out again while anybody works on it.
 *   3. All of it comes back, though importers die, or live on in silence.
 *
 * The third is seen as the owner's waiting for ever, where nothing else can
 * happen any more.
 *
 * Each -DBUG_... takes one step of the protocol away; model_test.py has all of
 * them checked, and each must be found.
 */
#ifndef SHARES
#define SHARES 3 /* How often blocks are shared, in all. */
#endif
#ifndef USES
#define USES 1 /* How often each importer tries a ticket. */
#endif
#ifndef IMPORTERS
#define IMPORTERS 3 /* 2 or 3. */
#endif

#ifdef BUG_GENERATION_USED_AGAIN
#define GENERATION(share) 1
#else
#define GENERATION(share) share
#endif

/* Shared memory. */
byte generation[2]; /* By slot: written by the owner, read by importers. */
bit hold[2 * IMPORTERS];        /* By importer and slot: each importer writes its own. */
#define HOLD(who, slot) hold[(who) * 2 + (slot)]

/* What the owner learns of importers. */
mtype = { connected, said_goodbye, hung_up };
mtype connection[IMPORTERS] = connected;
bit killed[IMPORTERS];
bit dead[IMPORTERS]; /* The system says that the process has ended. */

/* Tickets: by share, from 1. */
byte shares;
byte slot_of_ticket[SHARES + 1];
byte block_of_ticket[SHARES + 1];

/* What is so, whoever knows it. */
byte contents[2]; /* By block: the share that it was handed out for; 0: free. */
byte working[IMPORTERS];  /* By importer: 1 + the block that it works on, or 0. */

#define HELD(who, slot) (listed[who] && HOLD(who, slot))
#define DOES_WORK_ON(who, b) (working[who] == 1 + (b))
/* Of all importers. */
#if IMPORTERS > 2
#define ANY_HELD(slot) (HELD(0, slot) || HELD(1, slot) || HELD(2, slot))
#define WORKS_ON(b) (DOES_WORK_ON(0, b) || DOES_WORK_ON(1, b) || DOES_WORK_ON(2, b))
#else
#define ANY_HELD(slot) (HELD(0, slot) || HELD(1, slot))
#define WORKS_ON(b) (DOES_WORK_ON(0, b) || DOES_WORK_ON(1, b))
#endif

active proctype Owner() {
  byte block_in[2]; /* By slot: 1 + the block; 0: the slot is free. */
  bit listed[IMPORTERS]; /* By importer: its holds count. */
  byte s;

  d_step {
    listed[0] = 1;
    listed[1] = 1;
#if IMPORTERS > 2
    listed[2] = 1
#endif
  }
again:
  do
  :: shares < SHARES && (block_in[0] == 0 || block_in[1] == 0) ->
    /* Shares a free block, by the slot that is free. */
    d_step {
      s = (block_in[0] == 0 -> 0 : 1);
      shares++;
      block_in[s] = 1 + (contents[0] == 0 -> 0 : 1);
      contents[block_in[s] - 1] = shares;
      slot_of_ticket[shares] = s;
      block_of_ticket[shares] = block_in[s] - 1
    }
    generation[s] = GENERATION(shares)
  :: shares == SHARES && block_in[0] == 0 && block_in[1] == 0 -> break
  :: block_in[0] != 0 -> s = 0; goto reclaim
  :: block_in[1] != 0 -> s = 1;
reclaim:
#ifndef BUG_LOOKS_BEFORE_WITHDRAWING
    generation[s] = 0;
#endif
#ifndef BUG_DOES_NOT_LOOK
    /* At one importer's hold, then at the next one's. */
    if
    :: HELD(0, s) -> goto held
    :: else
    fi;
#ifndef BUG_LOOKS_AT_ONE
    if
    :: HELD(1, s) -> goto held
    :: else
    fi;
#if IMPORTERS > 2
    if
    :: HELD(2, s) -> goto held
    :: else
    fi;
#endif
#endif
#endif
#ifdef BUG_LOOKS_BEFORE_WITHDRAWING
    generation[s] = 0;
#endif
    d_step {
      assert(!WORKS_ON(block_in[s] - 1));
      contents[block_in[s] - 1] = 0;
      block_in[s] = 0
    }
#ifndef BUG_DEATH_FORGOTTEN
  :: listed[0] && dead[0] -> listed[0] = 0
  :: listed[1] && dead[1] -> listed[1] = 0
#if IMPORTERS > 2
  :: listed[2] && dead[2] -> listed[2] = 0
#endif
#endif
#ifdef BUG_HANG_UP_IS_DEATH
  :: listed[0] && connection[0] == hung_up -> listed[0] = 0
  :: listed[1] && connection[1] == hung_up -> listed[1] = 0
#if IMPORTERS > 2
  :: listed[2] && connection[2] == hung_up -> listed[2] = 0
#endif
#endif
  :: listed[0] && connection[0] == said_goodbye -> listed[0] = 0
  :: listed[1] && connection[1] == said_goodbye -> listed[1] = 0
#if IMPORTERS > 2
  :: listed[2] && connection[2] == said_goodbye -> listed[2] = 0
#endif
  od;
  goto done;

held:
  /* Does something else, or waits until that has changed. */
  if
  :: shares < SHARES && (block_in[0] == 0 || block_in[1] == 0)
  :: block_in[1 - s] != 0 && !ANY_HELD(1 - s)
  :: !ANY_HELD(s)
  :: listed[0] && connection[0] == said_goodbye
  :: listed[1] && connection[1] == said_goodbye
#if IMPORTERS > 2
  :: listed[2] && connection[2] == said_goodbye
#endif
#ifndef BUG_DEATH_FORGOTTEN
  :: listed[0] && dead[0]
  :: listed[1] && dead[1]
#if IMPORTERS > 2
  :: listed[2] && dead[2]
#endif
#endif
  fi;
  goto again;

done:
  s = 0
}

proctype Importer(byte me) {
  byte ticket, uses;
  {
end_waits:
    do
    :: uses < USES && shares > 0 && connection[me] != said_goodbye ->
      uses++;
      if
      :: ticket = 1
      :: shares > 1 -> ticket = 2
      :: shares > 2 -> ticket = 3
      fi;
#ifndef BUG_CHECKS_BEFORE_HOLDING
      HOLD(me, slot_of_ticket[ticket]) = 1;
#endif
      if
      :: generation[slot_of_ticket[ticket]] == GENERATION(ticket) ->
#ifdef BUG_CHECKS_BEFORE_HOLDING
        HOLD(me, slot_of_ticket[ticket]) = 1;
#endif
        d_step {
          assert(contents[block_of_ticket[ticket]] == ticket);
          working[me] = 1 + block_of_ticket[ticket]
        }
#ifdef BUG_GOODBYE_WHILE_HOLDING
        connection[me] = said_goodbye;
#endif
#ifdef BUG_RELEASES_BEFORE_WORK_ENDS
        HOLD(me, slot_of_ticket[ticket]) = 0;
#endif
        working[me] = 0;
        HOLD(me, slot_of_ticket[ticket]) = 0
      :: else ->
#ifndef BUG_REFUSED_KEEPS_ITS_HOLD
        HOLD(me, slot_of_ticket[ticket]) = 0
#else
        skip
#endif
      fi;
      ticket = 0
    /* It holds nothing, and will use nothing more. */
    :: connection[me] == connected -> connection[me] = said_goodbye
    /* That was lost; or it goes on with what it has. Nobody can tell. */
    :: connection[me] == connected -> connection[me] = hung_up
    od
  } unless {
    killed[me];
#ifdef BUG_DEATH_BEFORE_WORK_ENDS
    dead[me] = 1;
    working[me] = 0
#else
    /* What a GPU does for it ends first: the system says so after that. */
    working[me] = 0;
    dead[me] = 1
#endif
  }
}

/* Kills any of them, or none, at any moment. */
active proctype Killer() {
  do
  :: !killed[0] -> killed[0] = 1
  :: !killed[1] -> killed[1] = 1
#if IMPORTERS > 2
  :: !killed[2] -> killed[2] = 1
#endif
  :: break
  od
}

init {
  atomic {
    run Importer(0);
    run Importer(1);
#if IMPORTERS > 2
    run Importer(2)
#endif
  }
}
