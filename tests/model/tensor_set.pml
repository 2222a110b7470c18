/* Sealing and replacing a tensor set in a keeper, as vmm/weights and vmm/keeper
 * have it: which set a reader finds under a name, and when the memory of the one
 * before goes.
 *
 * A writer takes memory, fills it, asks for the set that is kept, seals its own
 * with the next generation, and has the keeper replace that one by it. A reader
 * attaches what is kept, uses it and lets go. Or it has a writer's memory by another
 * way, an endpoint's ticket for example, from the moment it is there.
 * What is stored for a restart of the keeper is in it too.
 *
 * One process is killed at any moment, or none: a writer, a reader or the keeper,
 * which then starts again with what the service manager has stored. Memory lives
 * as long as anybody has a reference: a mapping, a handle that is open, on its way
 * or stored. The system drops those of a process that has ended. Memory that is
 * taken again has the old bytes, and a new id.
 *
 * A statement is one access to memory, one message, or what a mutex makes one.
 *
 * What must hold, in every order of all steps:
 *   1. Who finds a set finds all of it, and of one generation.
 *   2. Generations do not go backwards for a reader, and none comes twice.
 *   3. Memory that somebody uses is not taken again.
 *   4. At the end only what is kept holds memory, or room in the keeper.
 *
 * The fourth is seen as the auditor's waiting for ever, or its finding one.
 *
 * Left out: Drop(), a set that was put by Put() and Seal(), a service manager that
 * does not obey, and a clock that is set back while the keeper does not run.
 *
 * Each -DBUG_... takes one step of the protocol away; model_test.py has all of
 * them checked, and each must be found.
 */
#ifndef WRITERS
#define WRITERS 2 /* At most 3. */
#endif
#ifndef READERS
#define READERS 1 /* At most 3; writers attach what is there, too. */
#endif
#ifndef PUBLISHES
#define PUBLISHES 2 /* In all. */
#endif
#ifndef ATTACHES
#define ATTACHES 2 /* Of the first reader; one less of each other one. */
#endif
#define PIECES 3 /* Of memory. Where none is left cuMemCreate() refuses. */
#define MOST 3

/* Memory, by piece. */
byte id[PIECES];         /* MemoryId: new each time that it is taken. */
byte data_of[PIECES];    /* The id of the set whose data are there, whole. */
byte manifest_of[PIECES];
byte generation[PIECES]; /* In the manifest. */
bit trailer[PIECES];
byte ids;

/* References: 1 + the piece, or 0. */
byte allocated[MOST]; /* By writer: its Allocation; */
byte before[MOST];    /* the set that it replaces, in PublishTensorSet(); */
byte coming[MOST];    /* its handles, on their way to the keeper or there; */
byte old[MOST];       /* Registry::Replaced, in its session. */
byte found[MOST];     /* By reader: Registry::Found, in its session; */
byte mapped[MOST];    /* its ImportedAllocation. */
byte kept;            /* Registry::Entry::content. */
bit stored[PIECES];   /* The handles, by the service manager. */

#define IN(refs, p) (refs[0] == 1 + (p) || refs[1] == 1 + (p) || refs[2] == 1 + (p))
#ifdef BUG_SENDS_WITHOUT_HOLDING
#define FOUND_HOLDS(p) false
#else
#define FOUND_HOLDS(p) IN(found, p)
#endif
#ifdef BUG_OLD_GOES_WITH_ITS_NAME
#define MAPPED_HOLDS(p) false
#else
#define MAPPED_HOLDS(p) (IN(mapped, p) || IN(before, p))
#endif
#define IS_HELD(p) (IN(allocated, p) || IN(coming, p) || IN(old, p) || \
                    FOUND_HOLDS(p) || MAPPED_HOLDS(p) || kept == 1 + (p) || \
                    stored[p])
#define IS_WHOLE(p) (data_of[p] == id[p] && manifest_of[p] == id[p])

/* The store: a record for each entry. */
bit record[PIECES];
byte replaces[PIECES]; /* Record::replaces: an id. */

inline RemoveRecord(p) {
  record[p] = 0;
  replaces[p] = 0
}

/* The keeper. */
bit runs = 1;
bit changing;          /* Server::change_mutex_ */
bit arriving[MOST];    /* Registry::arriving_, by writer. */
byte asked[MOST];      /* Request::replaces: an id; 0: none. */
bit waits[MOST];       /* The writer, for its answer or the hang-up. */
bit session_ends[MOST];
bit killed_writer[MOST];
bit killed_reader[MOST];
byte clients;          /* That have not ended. */
byte published;        /* How often, in all. */

/* Registry::CheckReplace(). */
#ifdef BUG_NOT_COMPARED
#define IS_SAME(w) (kept != 0)
#else
#define IS_SAME(w) (kept != 0 && id[kept - 1] == asked[w])
#endif
#ifdef BUG_FREE_NAME_NOT_CHECKED
#define IS_FREE true
#else
#define IS_FREE (kept == 0)
#endif
#define MAY_REPLACE(w) (asked[w] == 0 && IS_FREE || asked[w] != 0 && IS_SAME(w))
#ifdef BUG_COMPARED_AT_BEGIN_ONLY
#define MAY_STILL_REPLACE(w) true
#else
#define MAY_STILL_REPLACE(w) MAY_REPLACE(w)
#endif

/* A client, from TensorSetWriter::Begin() to PublishTensorSet(). */
proctype Writer(byte me) {
  byte p;
  byte next;
  {
    do
    :: atomic {
        published < PUBLISHES ->
        published++;
        /* Allocation::Create(). */
        p = 0;
        do
        :: p < PIECES && IS_HELD(p) -> p++
        :: else -> break
        od;
        if
        :: p == PIECES -> p = 0; goto ended
        :: else
        fi;
        ids++;
        id[p] = ids;
        allocated[me] = 1 + p;
#ifndef BUG_OLD_TRAILER_STAYS
        /* Begin(): before anybody else knows of the memory. */
        trailer[p] = 0
#endif
      }
      atomic {
#ifndef BUG_SEALS_BEFORE_COPIES_END
        data_of[p] = id[p]; /* Write(), and Finish() in Seal(). */
#endif
        /* PublishTensorSet(): AttachTensorSet(), and what its manifest says. */
        if
        :: !runs -> goto give_up
        :: else
        fi;
        before[me] = kept;
        if
        :: kept != 0 -> next = generation[kept - 1] + 1; asked[me] = id[kept - 1]
        :: else -> next = 1; asked[me] = 0
        fi;
#ifndef BUG_TRAILER_FIRST
        /* Seal(): the manifest, and when that is there the trailer. */
        manifest_of[p] = id[p];
        generation[p] = next
#endif
      }
      trailer[p] = 1;
#ifdef BUG_TRAILER_FIRST
      d_step { manifest_of[p] = id[p]; generation[p] = next }
#endif
#ifdef BUG_SEALS_BEFORE_COPIES_END
      data_of[p] = id[p];
#endif
#ifdef BUG_ID_READ_APART
      atomic {
        if
        :: kept != 0 -> asked[me] = id[kept - 1]
        :: else
        fi
      }
#endif
      /* KeeperClient::Replace(): Registry::BeginReplace(), in its session; */
      atomic {
        if
        :: !runs || !MAY_REPLACE(me) -> goto give_up
        :: else
        fi;
        arriving[me] = 1
      }
      /* then it sends the handles, if the keeper is still there, */
      atomic {
        if
        :: !arriving[me] -> goto give_up
        :: else
        fi;
        coming[me] = 1 + p;
        waits[me] = 1
      }
      /* and waits for the answer. */
      !waits[me];
give_up:
      atomic {
        before[me] = 0;
        allocated[me] = 0;
        asked[me] = 0;
        next = 0;
        p = 0
      }
    :: atomic { published == PUBLISHES -> break }
    od
ended:
    clients--
  } unless {
    atomic {
      killed_writer[me];
      allocated[me] = 0;
      before[me] = 0;
      p = 0;
      next = 0;
      clients--
    }
  }
}

/* Server::ServePut() and Server::Replace(), for one writer. */
proctype Session(byte me) {
  byte p;
end_idle:
  {
    do
    :: atomic {
        coming[me] != 0 && !changing ->
        p = coming[me] - 1;
        changing = 1;
        if
        :: MAY_STILL_REPLACE(me) -> break
        :: else -> goto refused
        fi
      }
#ifndef BUG_ARRIVES_FOR_EVER
    /* It hangs up before its handles came. */
    :: atomic {
        killed_writer[me] && arriving[me] && coming[me] == 0 ->
        arriving[me] = 0;
        goto end_idle
      }
#endif
    od;
#ifdef BUG_OLD_REMOVED_FIRST
    atomic {
      if
      :: kept != 0 -> RemoveRecord(kept - 1); stored[kept - 1] = 0
      :: else
      fi
    }
#endif
#ifdef BUG_COMMITS_BEFORE_IT_IS_STORED
    atomic { old[me] = kept; kept = 1 + p; arriving[me] = 0; coming[me] = 0 }
#endif
    /* Store::Save(): the handles, and then the record. */
    stored[p] = 1;
    atomic {
      record[p] = 1;
#ifdef BUG_RECORD_NAMES_NO_OTHER
      replaces[p] = 0
#else
      replaces[p] = asked[me]
#endif
    }
#ifndef BUG_COMMITS_BEFORE_IT_IS_STORED
    /* Registry::CommitReplace(). */
    atomic {
      assert(MAY_STILL_REPLACE(me));
      old[me] = kept;
      kept = 1 + p;
      arriving[me] = 0;
      coming[me] = 0;
      assert(old[me] == 0 || generation[p] == generation[old[me] - 1] + 1)
    }
#endif
    /* Store::Remove() of the old one: the record, and then the handles. */
    if
    :: old[me] != 0 ->
      atomic { RemoveRecord(old[me] - 1) }
      stored[old[me] - 1] = 0
    :: else
    fi;
    goto answer;
refused:
    atomic { arriving[me] = 0; coming[me] = 0 }
answer:
    atomic {
      changing = 0;
#ifndef BUG_OLD_IS_KEPT
      old[me] = 0;
#endif
      waits[me] = 0;
      p = 0;
      goto end_idle
    }
  } unless {
    atomic { session_ends[me] -> session_ends[me] = 0; p = 0; goto end_idle }
  }
}

/* AttachTensorSet(), again and again. */
proctype Reader(byte me) {
  byte attaches;
  byte wanted; /* The ticket's id. */
  byte last;   /* The last generation that it saw, */
  byte last_id; /* and which memory that was. */
  {
    do
    /* Server::ServeAttach(): Registry::Attach(), */
    :: atomic {
        attaches + me < ATTACHES && runs && kept != 0 ->
        attaches++;
        found[me] = kept;
        wanted = id[kept - 1]
      }
      /* and SendFound(), if the keeper is still there. */
      atomic {
        if
        :: found[me] == 0 -> goto let_go
        :: else
        fi;
        mapped[me] = found[me];
        found[me] = 0;
        assert(id[mapped[me] - 1] == wanted);
        /* TensorSet::Open(): of what is sealed nothing changes any more. */
        assert(trailer[mapped[me] - 1]);
        assert(IS_WHOLE(mapped[me] - 1));
        assert(generation[mapped[me] - 1] > last || wanted == last_id);
        last = generation[mapped[me] - 1];
        last_id = wanted
      }
      goto let_go;
    /* TensorSet::Open() of memory that a writer shares by another way. */
    :: atomic {
        attaches + me < ATTACHES && allocated[0] != 0 ->
        attaches++;
        mapped[me] = allocated[0];
        wanted = id[allocated[0] - 1]
      }
      atomic {
        if
        :: trailer[mapped[me] - 1] -> assert(IS_WHOLE(mapped[me] - 1))
        :: else -> mapped[me] = 0
        fi
      }
      /* It uses the tensors, and lets go. */
let_go:
      atomic {
        assert(mapped[me] == 0 || id[mapped[me] - 1] == wanted && IS_WHOLE(mapped[me] - 1));
        mapped[me] = 0;
        wanted = 0
      }
    :: break
    od;
    atomic { attaches = 0; last = 0; last_id = 0; clients-- }
  } unless {
    atomic {
      killed_reader[me];
      found[me] = 0;
      mapped[me] = 0;
      attaches = 0;
      wanted = 0;
      last = 0;
      last_id = 0;
      clients--
    }
  }
}

/* Kills one, or none. */
proctype Killer() {
  byte p, q;
  bit is_replaced[PIECES];
  if
  :: killed_writer[0] = 1
  :: killed_reader[0] = 1
  :: true
  :: atomic {
      /* The keeper: what it has in its memory is gone. */
      runs = 0;
      kept = 0;
      changing = 0;
      p = 0;
      do
      :: p < WRITERS ->
        session_ends[p] = 1;
        waits[p] = 0;
        arriving[p] = 0;
        coming[p] = 0;
        old[p] = 0;
        p++
      :: else -> break
      od;
      p = 0;
      do
      :: p < READERS -> found[p] = 0; p++
      :: else -> break
      od
    }
    /* Store::Restore(): what has no record, */
    atomic {
      p = 0;
      do
      :: p < PIECES ->
        if
        :: !record[p] -> stored[p] = 0
        :: else -> assert(stored[p])
        fi;
        p++
      :: else -> break
      od;
      /* and RemoveReplaced(). Record::since has the order of generations: who
       * replaces a set has attached it before. */
      p = 0;
      do
      :: p < PIECES ->
        q = 0;
        do
        :: q < PIECES ->
          if
          :: record[p] && record[q] && p != q &&
             (replaces[q] == id[p] ||
              replaces[p] != id[q] && replaces[q] != 0 && generation[p] < generation[q]) ->
            is_replaced[p] = 1
          :: else
          fi;
          q++
        :: else -> break
        od;
        p++
      :: else -> break
      od;
      p = 0;
      do
      :: p < PIECES ->
        if
        :: is_replaced[p] -> RemoveRecord(p); stored[p] = 0; is_replaced[p] = 0
        :: else
        fi;
        p++
      :: else -> break
      od;
      /* Registry::Restore(): where two were left, any of them. */
      if
      :: record[0] -> kept = 1
      :: record[1] -> kept = 2
      :: record[2] -> kept = 3
      :: else
      fi;
      p = 0;
      do
      :: p < PIECES ->
        if
        :: record[p] && kept != 1 + p -> RemoveRecord(p); stored[p] = 0
        :: else
        fi;
        p++
      :: else -> break
      od;
      p = 0;
      q = 0;
      runs = 1
    }
  fi
}

/* Looks at what is left when all clients have ended. */
proctype Auditor() {
  byte p;
  atomic {
    clients == 0 && runs && !changing &&
    !arriving[0] && !arriving[1] && !arriving[2] &&
    coming[0] == 0 && coming[1] == 0 && coming[2] == 0 ->
    do
    :: p < PIECES -> assert(kept == 1 + p || !IS_HELD(p)); p++
    :: else -> break
    od
  }
}

init {
  byte i;
  atomic {
    if
    :: true
    :: /* A set is there from the beginning. */
      ids = 1;
      id[0] = 1;
      data_of[0] = 1;
      manifest_of[0] = 1;
      generation[0] = 1;
      trailer[0] = 1;
      kept = 1;
      stored[0] = 1;
      record[0] = 1
    fi;
    clients = WRITERS + READERS;
    do
    :: i < WRITERS -> run Writer(i); run Session(i); i++
    :: else -> break
    od;
    i = 0;
    do
    :: i < READERS -> run Reader(i); i++
    :: else -> break
    od;
    i = 0;
    run Killer();
    run Auditor()
  }
}
