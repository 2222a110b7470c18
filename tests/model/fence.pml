/* The hand-over of buffers by fences, as vmm/queue/{ring_writer,ring_reader}.cc
 * have it on vmm/sync: when a buffer may be filled, when it may be used, and
 * what becomes of streams that wait for a peer that has died.
 *
 * A writer has some buffers, and two fences for each: "full" and "free". Lap n of
 * the ring is value n of both. For each item it puts on a stream a wait for
 * "free" of the lap before, the fill, and the signal of "full"; then it sends a
 * message. A reader that receives it puts on a stream a wait for "full", its use,
 * and the signal of "free". Hosts run ahead of their GPUs.
 *
 * Either side has STREAMS streams, which items take in turns. With one for each
 * buffer, work in different buffers is ordered by fences alone.
 *
 * One side is killed anywhere, or none; either leaves the ring after any item. The
 * GPU of who is killed goes on for as long as it likes, as it does where a forked child
 * has its context too. The peer can see the hang-up at once, and the proof of the
 * end (platform::PeerWatch, by the lifeline) once nobody has the context.
 *
 * A statement is one access to shared memory, one message or one step of a GPU.
 * What the code does by a loop of compare-and-swap is one statement. A stream
 * begins its work in the moment in which its wait ends: who begins later works
 * for a part of that time.
 *
 * What must hold, in every order of all steps:
 *   1. A buffer is not filled while the other side's GPU uses what it was given.
 *   2. A use finds the whole item. Only behind a fence that was abandoned it may
 *      find anything: then Await() and Finish() do not return OK for the item.
 *   3. Memory, and a fence, are not handed out again while a GPU has work for
 *      them.
 *   4. No host and no stream waits for ever, though the peer has died.
 *
 * The fourth is seen as an end where a host has not ended, or a stream stands at
 * a wait.
 *
 * Left out: LetGo(), peers that lie, errors of the driver, and any `patience` that
 * ends.
 *
 * One known weakness is left out, and -DSTREAMS=2 with one buffer finds it: two
 * streams signal one fence. ~Fence() waits for the highest value only, so the lower
 * one may come into the next fence.
 *
 * Each -DBUG_... takes one step of the protocol away; model_test.py has all of
 * them checked, and each must be found.
 */
#ifdef BUG_ONE_FENCE_FOR_ALL_BUFFERS
#define BUFFERS 2 /* It takes two to see it. */
#endif
#ifdef BUG_DOES_NOT_HEAR_THE_BYE
#define BUFFERS 2 /* As many, and the second one's second lap. */
#define ITEMS 4
#endif
#ifndef BUFFERS
#define BUFFERS 1
#endif
#ifndef ITEMS
#define ITEMS 3 /* In all. */
#endif
#ifndef STREAMS
#define STREAMS BUFFERS /* Of each side, in turns; as many as ITEMS at most. */
#endif
#define MOST_ITEMS 4
#define LAPS_AHEAD 2 /* kLapsAhead in ring_writer.cc. */

#define BUFFER(i) (((i) - 1) % BUFFERS)
#define LAP(i) (((i) - 1) / BUFFERS + 1)

#define W 0 /* The writer's side. */
#define R 1

/* The words of fences, in memory that both have: "full" and "free" by buffer. */
byte word[2 * BUFFERS];      /* Words::value. */
byte abandoned[2 * BUFFERS]; /* Words::abandoned: 0, or 1 + what was reached. */
#ifdef BUG_ONE_FENCE_FOR_ALL_BUFFERS
#define FULL(b) 0
#define VALUE(i) (i)
#else
#define FULL(b) (b)
#define VALUE(i) LAP(i)
#endif
#define FREE(b) (BUFFERS + (b))
#define END 15 /* base + kSpan: it lets all waits go. */

#define GONE(f) (abandoned[f] != 0)
/* That Look() says so. */
#define REACHED(f, v) ((word[f] >= (v) && word[f] != END) || abandoned[f] > (v))

/* fence::Look(): puts the end back where a late signal has hidden it. */
inline Look(f) {
  if
  :: GONE(f) && word[f] != END ->
    if
    :: abandoned[f] < word[f] + 1 -> abandoned[f] = word[f] + 1
    :: else
    fi;
    word[f] = END
  :: else
  fi
}

/* fence::Abandon(). */
inline Abandon(f) {
  if
  :: !GONE(f) -> abandoned[f] = word[f] + 1
  :: else
  fi;
  Look(f)
}

/* Up to where hosts have put work on their streams, by side and item, and how
 * far the GPU is. */
#define WORK 1   /* The wait, and the fill or the use behind it. */
#define SIGNAL 2
byte put[2 * (MOST_ITEMS + 1)];
byte done[2 * (MOST_ITEMS + 1)];
byte behind[2]; /* By side: fills; uses and their signals. */
#define PUT(side, i) put[(side) * (MOST_ITEMS + 1) + (i)]
#define DONE(side, i) done[(side) * (MOST_ITEMS + 1) + (i)]

/* The channel, and what the system says of either process. */
byte sent;      /* kRingItem: how many. */
bit end_sent;   /* kRingEnd. */
bit bye[2];     /* kRingBye. */
bit hung_up[2]; /* Or its process has ended: Watch() looks for both. */
bit killed[2];
bit no_context[2];
bit proven[2]; /* PeerEnd::kProven. */

/* What is so, whoever knows it. */
byte item_in[BUFFERS]; /* The whole item that is there; 0: none. */
bit filling[BUFFERS];
bit using[BUFFERS];
bit spoilt[ITEMS + 1];   /* A use did not find the whole item. */
bit believed[ITEMS + 1]; /* The reader was told that it would. */

/* Of the pools. */
bit given_back[BUFFERS]; /* By the writer: the block and both fences. */
byte enqueued[BUFFERS];  /* Of "full": Leaving::enqueued. */
bit imported[BUFFERS];   /* By the reader. */
/* Whether somebody else may have it: the lease's protocol is in lease.pml. */
#define OTHERS_HAVE_BLOCK(b) (given_back[b] && (!imported[b] || proven[R]))
#ifdef BUG_FENCE_AGAIN_BEFORE_ITS_SIGNAL
#define HAS_SIGNALLED(b) true
#else
#define HAS_SIGNALLED(b) REACHED(FULL(b), enqueued[b])
#endif
#define OTHERS_HAVE_FENCES(b) (OTHERS_HAVE_BLOCK(b) && HAS_SIGNALLED(b))

/* What is on streams. */
#define IS_NEXT(side, i) ((i) <= STREAMS || DONE(side, (i) - STREAMS) == PUT(side, (i) - STREAMS))
#ifdef BUG_WRITER_DOES_NOT_WAIT
#define MAY_FILL(i) true
#else
#ifdef BUG_WRITER_WAITS_FOR_THE_LAP_BEFORE
#define MAY_FILL(i) (LAP(i) <= 2 || word[FREE(BUFFER(i))] >= LAP(i) - 2)
#else
#define MAY_FILL(i) (LAP(i) == 1 || word[FREE(BUFFER(i))] >= LAP(i) - 1)
#endif
#endif
#ifdef BUG_READER_DOES_NOT_WAIT
#define MAY_USE(i) true
#else
#define MAY_USE(i) (word[FULL(BUFFER(i))] >= VALUE(i))
#endif

/* A stream that nobody puts anything on any more may stay as it is. One that has
 * begun to wait may not. */
proctype WriterStream(byte i) {
  {
end_idle:
    do
    :: PUT(W, i) >= WORK -> break
    od;
    atomic {
      IS_NEXT(W, i) && MAY_FILL(i);
      assert(!using[BUFFER(i)]);
      assert(!OTHERS_HAVE_BLOCK(BUFFER(i)));
      filling[BUFFER(i)] = 1;
      item_in[BUFFER(i)] = 0
    }
    d_step {
      assert(!OTHERS_HAVE_BLOCK(BUFFER(i)));
      filling[BUFFER(i)] = 0;
      item_in[BUFFER(i)] = i;
      behind[W]--;
      DONE(W, i) = WORK
    }
end_before_signal:
    d_step {
      PUT(W, i) == SIGNAL;
      assert(!OTHERS_HAVE_FENCES(BUFFER(i)));
      word[FULL(BUFFER(i))] = VALUE(i);
      DONE(W, i) = SIGNAL
    }
  } unless {
    no_context[W]
  }
}

proctype ReaderStream(byte i) {
  {
end_idle:
    do
    :: PUT(R, i) >= WORK -> break
    od;
    atomic {
      IS_NEXT(R, i) && MAY_USE(i);
      assert(!OTHERS_HAVE_BLOCK(BUFFER(i)));
      if
      :: item_in[BUFFER(i)] == i -> using[BUFFER(i)] = 1
      :: else ->
        assert(GONE(FULL(BUFFER(i))));
        assert(!believed[i]);
        spoilt[i] = 1;
        using[BUFFER(i)] = 1
      fi
    }
    d_step {
      assert(!OTHERS_HAVE_BLOCK(BUFFER(i)));
      using[BUFFER(i)] = 0;
      behind[R]--;
      DONE(R, i) = WORK
    }
end_before_signal:
    d_step {
      PUT(R, i) == SIGNAL;
      assert(!OTHERS_HAVE_FENCES(BUFFER(i)));
      word[FREE(BUFFER(i))] = LAP(i);
      behind[R]--;
      DONE(R, i) = SIGNAL
    }
  } unless {
    no_context[R]
  }
}

/* RingPeer: what a host sees of the other side. */
#define READER_HAS_GONE (bye[R] || hung_up[R])
#define WRITER_HAS_GONE hung_up[W] /* Watch(false), which reads no message. */
#ifdef BUG_LETS_GO_AT_HANG_UP
#define READER_HAS_ENDED (left || hung_up[R])
#else
#define READER_HAS_ENDED (left || proven[R])
#endif
#ifdef BUG_READER_LETS_GO_AT_HANG_UP
#define WRITER_HAS_ENDED (left || hung_up[W])
#else
#define WRITER_HAS_ENDED (left || proven[W])
#endif

/* Fence::WaitOnHost(): the value first, then whether it was abandoned, then
 * whether the peer has gone. */
#ifdef BUG_ABANDONED_IS_REACHED
#define IS_REACHED(f, v) (word[f] >= (v))
#else
#define IS_REACHED(f, v) REACHED(f, v)
#endif
#define STANDS(f, v) (!IS_REACHED(f, v) && !GONE(f))
#define IS_ABANDONED(f, v) (!IS_REACHED(f, v) && GONE(f))

/* Whether the stream of an item waits for the reader. */
#define WAITS(i) \
  ((i) <= ITEMS && LAP(i) > 1 && PUT(W, i) != 0 && STANDS(FREE(BUFFER(i)), LAP(i) - 1))

/* RingWriter::State. */
proctype Writer() {
  byte n = 1; /* The next item. */
  byte b;
  byte published[BUFFERS]; /* Slot::published: a lap. */
  bit left;                /* RingPeer::left_: it has read the reader's kRingBye. */
  {
    do
    :: n <= ITEMS ->
      b = BUFFER(n);
      /* Acquire(). */
      if
      :: LAP(n) > LAPS_AHEAD ->
        if
        :: atomic { IS_REACHED(FREE(b), LAP(n) - LAPS_AHEAD) -> Look(FREE(b)) }
        :: atomic { IS_ABANDONED(FREE(b), LAP(n) - LAPS_AHEAD) -> Look(FREE(b)); goto aborted }
        :: atomic { STANDS(FREE(b), LAP(n) - LAPS_AHEAD) && READER_HAS_GONE -> left = bye[R]; goto lost }
        fi
      :: else
      fi;
      atomic {
        if
        :: LAP(n) > 1 ->
          Look(FREE(b));
          if
          :: IS_ABANDONED(FREE(b), LAP(n) - 1) -> goto aborted
          :: else
          fi
        :: else
        fi;
        PUT(W, n) = WORK; /* The program's fill is behind the wait. */
        behind[W]++
      }
#ifdef BUG_SIGNALS_BEFORE_THE_FILL
      word[FULL(b)] = VALUE(n);
#endif
      /* Publish(): StillHere(), LastPoint::Record(), Fence::Signal(), Send(). */
      atomic {
        if
        :: READER_HAS_GONE -> left = bye[R]; goto lost
        :: else
        fi
      }
      atomic {
        Look(FULL(b));
        if
        :: GONE(FULL(b)) -> goto aborted
        :: else
        fi;
        PUT(W, n) = SIGNAL;
        published[b] = LAP(n);
        enqueued[b] = VALUE(n)
      }
      atomic {
        if
        :: hung_up[R] -> left = bye[R]; goto lost
        :: else
        fi;
        sent = n;
        n++
      }
    /* The program has no more, and says so: Finish(). */
    :: n > ITEMS ->
      atomic {
        if
        :: hung_up[R] -> left = bye[R]; goto lost
        :: else
        fi;
        end_sent = 1;
        b = 0
      }
      do
      :: b < BUFFERS ->
        if
        :: atomic { IS_REACHED(FREE(b), published[b]) -> Look(FREE(b)); b++ }
        :: atomic { IS_ABANDONED(FREE(b), published[b]) -> Look(FREE(b)); goto aborted }
        :: atomic { STANDS(FREE(b), published[b]) && READER_HAS_GONE -> left = bye[R]; goto lost }
        fi
      :: else -> goto destroy
      od
    /* Or it does not. */
    :: goto destroy
    od;

aborted:
    /* Judge(), of ABORTED. */
    atomic {
      if
      :: READER_HAS_GONE -> left = bye[R]
      :: else -> goto destroy
      fi
    }
lost:
    /* Judge(), of UNAVAILABLE: in this call, or by Over() in a later one. */
    if
    :: READER_HAS_ENDED ->
#ifndef BUG_NEVER_LETS_GO
      b = 0;
      do
      :: atomic { b < BUFFERS -> Abandon(FREE(b)); b++ }
      :: b == BUFFERS -> break
      od
#endif
    /* The program makes no call any more before the proof. */
    :: goto destroy
    fi;

destroy:
    /* ~State(): waits for the reader, */
    b = 0;
#ifdef BUG_WRITER_GOES_AT_ONCE
    goto let_go;
#endif
    do
    :: b < BUFFERS ->
      if
      :: atomic { IS_REACHED(FREE(b), published[b]) -> Look(FREE(b)); b++ }
      :: atomic { IS_ABANDONED(FREE(b), published[b]) -> Look(FREE(b)); break }
      :: atomic { STANDS(FREE(b), published[b]) && READER_HAS_GONE -> left = bye[R]; break }
      fi
    :: else -> goto passed
    od;
    /* for the proof of its end where a stream waits for it, */
    if
    :: !WAITS(1) && !WAITS(2) && !WAITS(3) && !WAITS(4)
    :: READER_HAS_ENDED
#ifndef BUG_DOES_NOT_HEAR_THE_BYE
    :: bye[R] -> left = 1
#endif
    fi;
let_go:
    b = 0;
#ifndef BUG_NEVER_LETS_GO
    do
    :: atomic { b < BUFFERS -> Abandon(FREE(b)); b++ }
    :: b == BUFFERS -> break
    od;
#endif
    /* and for this GPU: LastPoint::Await(). The signal is behind that point. */
#ifndef BUG_ABANDONS_BEFORE_ITS_FILL_ENDS
    behind[W] == 0;
#endif
    b = 0;
#ifndef BUG_NEVER_LETS_GO
    do
    :: atomic { b < BUFFERS -> Abandon(FULL(b)); b++ }
    :: b == BUFFERS -> break
    od;
#endif
passed:
#ifndef BUG_MEMORY_BEFORE_THE_GPU_HAS_PASSED
    behind[W] == 0;
#endif
    atomic {
      b = 0;
      do
      :: b < BUFFERS -> given_back[b] = 1; b++
      :: else -> break
      od;
      b = 0;
      n = 0
    }
    /* Leave(). */
    atomic { bye[W] = 1; hung_up[W] = 1 }
  } unless {
    killed[W]
  }
}

/* RingReader::State. */
proctype Reader() {
  byte n; /* Items that it has acquired. */
  byte b;
  bit all_back; /* It read kRingEnd, and released all. */
  bit left;     /* It has read the writer's kRingBye. */
  {
    do
    :: atomic {
        n < sent ->
        /* Acquire(): Next(), BufferOf(), which imports the first time, */
        b = BUFFER(n + 1);
        if
        :: !imported[b] && given_back[b] -> goto destroy
        :: else
        fi;
        imported[b] = 1
      }
      atomic {
        /* and Fence::Wait(). */
        Look(FULL(b));
        if
        :: IS_ABANDONED(FULL(b), VALUE(n + 1)) -> goto destroy
        :: else
        fi;
        n++;
        PUT(R, n) = WORK; /* The program's use is behind the wait. */
        behind[R]++
      }
      if
      :: skip
      /* Await(). */
      :: atomic {
          IS_REACHED(FULL(b), VALUE(n)) -> Look(FULL(b));
          assert(!spoilt[n]);
          believed[n] = 1
        }
      :: atomic { IS_ABANDONED(FULL(b), VALUE(n)) -> Look(FULL(b)) };
        goto destroy
      :: STANDS(FULL(b), VALUE(n)) && WRITER_HAS_GONE -> goto lost
      fi;
#ifdef BUG_RELEASES_BEFORE_THE_USE_ENDS
      word[FREE(b)] = LAP(n);
#endif
      /* Release(): Fence::Signal(), LastPoint::Record(). */
      atomic {
        Look(FREE(b));
        if
        :: GONE(FREE(b)) -> goto destroy
        :: else
        fi;
        PUT(R, n) = SIGNAL;
        behind[R]++
      }
    :: atomic { n == sent && end_sent -> all_back = 1; break }
    :: atomic { n == sent && !end_sent && WRITER_HAS_GONE -> left = bye[W]; goto lost }
    /* The program stops here, with Finish() or without. */
    :: break
    :: goto destroy
    od;

finish:
    /* Finish(), or Await() for each: AwaitContents(), and this GPU's signals. */
    b = 1;
    do
    :: b <= n ->
      if
      :: atomic { IS_REACHED(FULL(BUFFER(b)), VALUE(b)) -> Look(FULL(BUFFER(b))) }
      :: atomic { IS_ABANDONED(FULL(BUFFER(b)), VALUE(b)) -> Look(FULL(BUFFER(b))); goto destroy }
      :: STANDS(FULL(BUFFER(b)), VALUE(b)) && WRITER_HAS_GONE -> goto lost
      fi;
      if
      :: PUT(R, b) != SIGNAL || IS_REACHED(FREE(BUFFER(b)), LAP(b)) -> b++
      :: PUT(R, b) == SIGNAL && IS_ABANDONED(FREE(BUFFER(b)), LAP(b)) -> goto destroy
      fi
    :: else -> break
    od;
    atomic {
      b = 1;
      do
      :: b <= n -> assert(!spoilt[b]); believed[b] = 1; b++
      :: else -> break
      od
    }
    goto destroy;

lost:
    /* Judge(): in this call, or by Over() in a later one. */
    if
    :: WRITER_HAS_ENDED ->
#ifndef BUG_READER_NEVER_LETS_GO
      b = 0;
      do
      :: atomic { b < BUFFERS -> if :: imported[b] -> Abandon(FULL(b)) :: else fi; b++ }
      :: b == BUFFERS -> break
      od;
#endif
      if
      :: goto finish
      :: goto destroy
      fi
    :: goto destroy
    fi;

destroy:
    /* End(): HasPassed(), while the writer is here; what was not released the
     * program waits for itself; */
#ifdef BUG_BYE_BEFORE_THE_GPU_HAS_PASSED
    goto passed;
#endif
    b = 0;
    if
    :: behind[R] == 0 -> goto passed
    :: behind[R] != 0 && WRITER_HAS_ENDED
    fi;
#ifndef BUG_READER_NEVER_LETS_GO
    do
    :: atomic { b < BUFFERS -> if :: imported[b] -> Abandon(FULL(b)) :: else fi; b++ }
    :: b == BUFFERS -> break
    od;
#endif
    /* and again; */
    behind[R] == 0;
passed:
    /* Leave(), */
    atomic { bye[R] = 1; hung_up[R] = 1 }
    /* what the writer waits for; */
    b = 0;
    do
    :: atomic {
        b < BUFFERS ->
        if
        :: imported[b] && !all_back -> Abandon(FULL(b)); Abandon(FREE(b))
        :: else
        fi;
        b++
      }
    :: b == BUFFERS -> break
    od;
    /* and the imports go. */
    atomic {
      b = 0;
      do
      :: b < BUFFERS -> imported[b] = 0; b++
      :: else -> break
      od;
      b = 0;
      n = 0
    }
  } unless {
    killed[R]
  }
}

/* Kills one side at any moment, or none. What a host does not see yet it could as
 * well have looked for before. */
proctype Killer() {
  bit side;
  byte b;
  if
  :: side = W
  :: side = R
  fi;
  if
  :: atomic {
      killed[side] = 1;
      hung_up[side] = 1;
#ifdef BUG_PROVEN_WITH_THE_PROCESS
      proven[side] = 1
#endif
    };
    atomic {
      no_context[side] = 1;
      proven[side] = 1;
      do
      :: b < BUFFERS ->
        if
        :: side == W -> filling[b] = 0
        :: else -> using[b] = 0
        fi;
        b++
      :: else -> break
      od;
      b = 0
    }
  :: true
  fi
}

init {
  byte i = 1;
  atomic {
    run Killer();
    do
    :: i <= ITEMS -> run WriterStream(i); run ReaderStream(i); i++
    :: else -> break
    od;
    run Writer();
    run Reader();
    i = 0
  }
}
