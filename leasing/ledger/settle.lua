-- settle books one claim on one account and answers it: account.go, in Lua,
-- atomically in Redis. KEYS[1] is the account, a hash: field "a" the account,
-- every other field a holder's record. All numbers are whole and below 2^53,
-- so that Lua's doubles hold them exactly. docs/protocol.md, section 6 has every
-- argument, number and field.
--
-- ARGV[1] is the holder. ARGV[2] is the claim: 17 doubles, little-endian, in the
-- order of the names below. Numbers travel packed because reading them one by one
-- as text, and answering so, took Redis as long as the rest of this script.
-- With KEYS[2], the stream of the account's audit, ARGV goes on: the rule, what
-- it declares to over-admit, the most events to keep, and for how long, in ms.
--
-- Windows that are billing months are cut by ends that come behind the claim in ARGV[2]:
-- the number of a window, and seven ends, of it and of those after it.
--
-- The answer is 22 doubles, packed alike, in the order of REPLY; or two, when the
-- claim was too late: 1 and its sequence number; or three, when it brought the ends of
-- windows about another time: 2, the ledger's time and its sequence number.

-- Times are in microseconds. Period is 0 for months of a calendar, Time 0 but in
-- tests (it is Redis' own), Learning the time until when the ledger learns, Before
-- what was charged in the window before. Flags: 1 eager, 2 direct, 4 refilled, 8
-- ahead, 16 tally, 32 final, 64 reset, 128 last, 256 stretch, 512 recall, 1024 tills: others may have
-- drawn, 2048 tried: this holder has, and took nothing.
local Seq, Fence, Window, Flags, Granted, Spent, Returned, Waiting, Want, TTL, Algorithm, Requests, Burst, Period, Time, Learning, Before =
  struct.unpack('<ddddddddddddddddd', ARGV[2])
local pack, unpack_record = cmsgpack.pack, cmsgpack.unpack
local Tills, Tried = Flags % 2048 >= 1024, Flags >= 2048
Flags = Flags % 1024

-- REPLY is the format of an answer: 0, granted, fence, window, void, available, outstanding,
-- reset after, retry after, holders, over-admitted, relearning, the ledger's time,
-- stranded, over, carried, missing, ttl, 1 for plenty and 2 for a till that is shut, recalling, recalled, seq.
local REPLY = '<dddddddddddddddddddddd'
local function too_late() return struct.pack('<dd', 1, Seq) end

local CLAIM_BYTES = 17 * 8
local MICRO = 1000000
local RELEARN_TIME, RELEARN_SHARE = 2000000, 20
local BUCKET_WAITS = 1000000
local MOST_FENCE = 4503599627370496 -- 2^52: believed of a holder
local MOST_RECORDS, KEPT_RECORDS, FOLD_AFTER = 256, 128, 10000000
local PLENTY_ABOVE, ROOM_ABOVE, IDLE_SHARE, LEAST_SHARES, LONGEST = 2, 8, 5, 4, 300000000
local ENTRY, MOST_DRAWN = 30, 100 * 30 -- the bytes of a draw's unit, and of what the quick way reads
local UNITS_OF_TWO = 40 -- from here on a unit of a till is more than one token
local RECALL_AGAIN, RECALL_TAKES = 1000000, 10000
local FIXED, SLIDING, BUCKET = 0, 1, 2
local NEVER = 9007199254740991 -- 2^53-1

-- The quick way settles what nearly every claim is, without what else is defined below: one for the
-- window that is current, or begins with it, by a holder that is known, or new. What other records come to
-- is kept in sums (19 to 30 of field "a"; see sums), so that they are read only where what their holders have
-- drawn is booked, or they are to give back. It does what the whole script does, to the letter, or
-- ends the block and has changed nothing. It is a block, and no function, for a
-- function would be made for each claim. Buckets have a block of their own behind it.
repeat
  local flags, period = Flags, Period
  local low = flags % 256
  -- Of the flags only eager, ahead, tally and stretch or recall are settled here. An audited account
  -- writes events, and months need their ends: they take the long way.
  if KEYS[2] or Algorithm == BUCKET or period == 0 or low >= 32 or low % 8 > 1 then break end
  local now, at = Time, Window
  if now == 0 then
    local time = redis.call('TIME')
    now = time[1] * 1000000 + time[2]
  end
  local fmod, max, min = math.fmod, math.max, math.min
  local w = (now - fmod(now, period)) / period + 1
  local sliding = Algorithm == SLIDING
  local holder, capacity, fence = ARGV[1], Requests, Fence
  local granted, spent, returned, waiting = Granted, Spent, Returned, Waiting
  -- Ahead of its window, a holder claims once; the long way settles what it says of that lease later.
  local ahead = low % 16 >= 8 and at == w + 1 and granted + spent + returned == 0
  -- The long way also settles claims while the ledger learns, and those that give a lease back, whose
  -- TTL is 0.
  if low % 16 >= 8 and (not ahead and at ~= w or sliding) or Learning > now or TTL <= 0 then break end
  -- Two fields, however many holders there are: the cost of a claim does not grow with them
  -- (docs/protocol.md, section 4.14).
  local found = redis.call('HMGET', KEYS[1], 'a', holder)
  local a, r, kept, turned
  if found[1] then
    a = unpack_record(found[1])
    -- Not while the ledger learns, or its clock has gone back;
    -- only while no lease has expired since the sums were made, which may have to be closed; nor where
    -- a reset gave back more than has been charged since, which counts by its weight, too.
    if now < a[1] or now < a[9] or not a[26] or fence > 0 and fence <= a[16] then break end
    if a[3] == w then
      if now >= a[24] or a[5] < 0 then break end
      -- An account that nothing was charged to could be deleted at any time.
      kept = a[19] > 0 or a[4] ~= 0
    else
      -- The first claim of a fixed window forgets all records but those of tally, or of a window that was claimed ahead.
      if a[3] > w or sliding or ahead or low >= 16 or (a[29] or 0) > 0 then break end
      turned = true
      local follows = a[3] == w - 1
      local before = follows and a[4] + a[19] or 0
      if before < 0 then break end
      a[12], a[13] = follows and max(capacity, a[11]) - a[4] - a[20] or capacity, follows and a[6] or 0
      a[3], a[4], a[5], a[6], a[11] = w, 0, before, 0, 0
      a[19], a[20], a[21], a[22], a[23], a[24], a[25] = 0, 0, 0, 0, 0, NEVER, NEVER
    end
    if found[2] then r = unpack_record(found[2]) end
  else
    -- A holder's record without an account: only the long way knows what to make of that.
    if found[2] then break end
    a = { now, 0, w, 0, 0, 0, 0, 0, 0, 0, 0, capacity, 0, now, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9007199254740991, 9007199254740991, 0 }
  end
  -- From a[25] on, a new holder has others' records folded or forgotten first, as the long way does; 1:
  -- unless its claim has tally, which keeps them.
  -- What was drawn is booked first, unless the window's till is shut (docs/protocol.md, section 4.17).
  -- Of one that is shut nobody reads what is appended.
  local till, booked, books, changed -- booked is the fence of what is booked
  if Tills and not sliding then
    till = KEYS[1] .. string.format('{%.0f}', ahead and at or w)
    if ahead then
      if redis.call('EXISTS', till) == 1 then break end
    elseif a[26] >= w then
      if Tried then redis.call('DEL', till) end
    else
      local drawn = redis.pcall('GET', till)
      if drawn then
        -- As place does below, but where an entry is none, or its holder has forgotten what it had, or its record has a mark.
        local unclear = type(drawn) ~= 'string' or #drawn > MOST_DRAWN
        local entries, names = {}, {}
        for i = 1, unclear and 0 or #drawn - ENTRY + 1, ENTRY do
          local name, n, seq = struct.unpack('<c14dd', drawn, i)
          name = string.match(name, '^(h%w+) *$')
          local number, last = math.abs(seq), entries[#entries]
          if not name or n < 1 or n >= MOST_FENCE or fmod(n, 1) ~= 0 or number >= MOST_FENCE or fmod(number, 1) ~= 0 then
            unclear = true
            break
          elseif last and last[1] == name and last[3] == number then
            last[2] = min(last[2] + n, MOST_FENCE)
          else
            entries[#entries + 1], names[#names + 1] = { name, n, number, seq < 0 }, name
          end
        end
        if unclear then break end
        books, changed = {}, {}
        local others = found[1] and not turned and #names > 0 and redis.call('HMGET', KEYS[1], unpack(names)) or {}
        for i, name in ipairs(names) do
          if name == holder then
            books[name] = r
          elseif others[i] and not books[name] then
            books[name] = unpack_record(others[i])
          end
          -- It makes room first, as a new holder that claims does.
          unclear = unclear or not books[name] and now >= a[25]
        end
        local ends = now + min(LONGEST, w * period - now)
        booked = max(a[2] + 1, now)
        a[2] = booked + 1
        for _, entry in ipairs(entries) do
          local name, n, number = entry[1], entry[2], entry[3]
          local b = books[name]
          local here = b and b[2] == w
          if b and b[2] > w or here and number >= b[1] and (entry[4] and b[5] > 0 or b[10] % 64 > 0) then
            unclear = true
          elseif not here or number >= b[1] then
            if here then
              local out = max(0, b[5] + b[6] - b[8] - b[7])
              a[19], a[21] = a[19] - max(b[5] + b[6] - b[8], b[7]), a[21] - out
              if now < b[3] then a[23] = a[23] - 1 else a[22] = a[22] - out end
            else
              b = { b and b[1] or 0, w, 0, 0, 0, 0, 0, 0, 0, 0 }
            end
            b[1], b[3], b[4], b[6], b[10] = max(b[1], number - 1), max(b[3], ends), booked, min(b[6] + n, MOST_FENCE), 256
            local paid = b[5] + b[6] - b[8]
            a[19], a[21], a[23], a[24] = a[19] + max(paid, b[7]), a[21] + max(0, paid - b[7]), a[23] + 1, min(a[24], b[3])
            books[name], changed[name] = b, b
          end
        end
        if unclear then break end
        r = books[holder] or r
      end
    end
  end
  local untidy = now >= a[25] and not (a[25] == 1 and low >= 16)
  if ahead then
    -- An account that is not there yet would begin with a window in which nothing is charged.
    if not found[1] or not r and untidy then break end
    if r then
      -- The name is that of the window before last, and is free. The holder of a lease of this window
      -- or the next has forgotten it.
      if Seq <= r[1] or r[2] >= w or r[10] % 32 >= 16 then break end
    end
    -- 27 to 30 are the sums of the next window's records: charged, outstanding, how many, and when the
    -- first of them expires.
    local charged, elsewhere, live = a[27] or 0, a[28] or 0, (a[29] or 0) + 1
    if now >= (a[30] or NEVER) then break end
    local room = min(capacity, max(0, capacity - charged))
    local lease = min(room, max(Want, waiting), max(waiting, (room - fmod(room, 2 * live)) / (2 * live)))
    local expires, f = now + TTL, low % 2 * 8
    if flags % 512 >= 256 and room > (capacity - fmod(capacity, ROOM_ABOVE)) / ROOM_ABOVE
      and room + elsewhere > (capacity - fmod(capacity, PLENTY_ABOVE)) / PLENTY_ABOVE then
      local parts = IDLE_SHARE * max(LEAST_SHARES, live)
      local share = min((capacity - fmod(capacity, parts)) / parts, (room - fmod(room, 2 * live)) / (2 * live))
      lease = max(lease, min(room, share))
      expires, f = max(expires, now + min(LONGEST, at * period - now)), f + 256
    end
    if lease < waiting and flags >= 512 and elsewhere > 0 then break end -- others are to give back
    local next_fence = max(a[2] + 1, now, min(fence, MOST_FENCE) + 1)
    redis.call('HSET', KEYS[1], 'a', pack({
      now, next_fence, w, a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11], a[12], a[13], a[14], a[15], a[16], a[17], a[18],
      a[19], a[20], a[21], a[22], a[23], a[24], a[25], a[26], charged + lease, elsewhere + lease, live, min(a[30] or NEVER, expires),
    }), holder, pack({ Seq, at, expires, next_fence, 0, lease, 0, 0, 0, f }))
    -- The first lease of the next window has the account outlive that.
    if charged == 0 and lease > 0 then
      local ms = math.floor((at * period - now) / 1000) + 1000
      if Time > 0 then ms = ms + 3600000 end
      redis.call('PEXPIRE', KEYS[1], min(ms, 31536000000 * 2))
    end
    return struct.pack(REPLY,
      0, lease, next_fence, at, 0, min(capacity, max(0, room - lease)), elsewhere, at * period - now, lease < waiting and at * period - now or 0,
      live, 0, 0, now, 0, a[6], 1, 0, expires - now, f >= 256 and 1 or 0, 0, 0, Seq
    )
  end
  local prev, left, late, over = a[5], a[12], a[13], 0
  local was_charged, was_spent, was_out, was_live, was_stranded, answered = 0, 0, 0, 0, 0, 0
  local base = a[4]
  if r then
    local f = r[10]
    local paid = r[5] + r[6] - r[8]
    -- Not a late or repeated claim, nor one about another window than its record, of a holder that
    -- has ended, or has forgotten what it was granted; but one of a holder that has drawn of this window in vain.
    local vain = books and books[holder] and at ~= w -- its record is of this window by now
    if Seq <= r[1] or r[2] ~= at and not vain or f % 32 >= 16 or fence == 0 and granted < r[5] and not vain then break end
    if vain then
      was_charged, was_spent, was_out = max(paid, r[7]), r[7], max(0, paid - r[7])
      if now < r[3] then was_live = 1 else was_stranded = was_out end
      base = base + max(r[5] - r[8], r[7])
      granted, spent, returned = 0, 0, 0
    elseif at == w then
      -- Nor of a lease that was closed or granted directly, or that the ledger has forgotten.
      if f % 2 == 1 or f % 8 >= 4 or granted > r[5] + r[6] then break end
      was_charged, was_spent = max(paid, r[7]), r[7]
      was_out = max(0, paid - r[7])
      if now < r[3] then was_live = 1 else was_stranded = was_out end
      answered = f % 256 >= 64 and 128 or 0
    else
      -- The first claim after the turn still speaks of the window before, whose record others had
      -- no reason to drop. For what it says then, see book and tally.
      if at ~= w - 1 then break end
      if sliding then
        prev = max(0, prev - max(paid, r[7]) + max(spent, granted - returned))
      else
        left = left - spent + r[7]
        over = max(late, -left) - late
        late = late + over
      end
      granted, spent, returned = 0, 0, 0
    end
  else
    -- A holder that has totals of this window is no new one: its record was folded, or lost.
    if untidy or at == w or sliding and at == w - 1 then break end
    if at == w - 1 and flags % 32 >= 16 then -- the last word on the window before, in mode approx
      left = left - spent
      over = max(late, -left) - late
      late = late + over
    end
    granted, spent, returned = 0, 0, 0
  end
  local most = max(a[11], capacity)
  local weighted = 0
  if sliding and prev > 0 then
    local tick = max(1, math.floor(period / 1048576))
    local total = (period + tick - 1 - fmod(period + tick - 1, tick)) / tick
    local rest = w * period - now + tick - 1
    local part, previous = (rest - fmod(rest, tick)) / tick, min(prev, 4398046511104)
    local high = math.floor(previous / 1048576) -- in two parts, for previous x part may be 2^62
    local top = fmod(high * part, total)
    local low = top * 1048576 + (previous - high * 1048576) * part + total - 1
    weighted = (high * part - top) / total * 1048576 + (low - fmod(low, total)) / total
  end
  local others, live = a[19] - was_charged, a[23] - was_live + 1
  local confirmed = max(0, spent - (granted - returned))
  local free = capacity - weighted - base - others - max(granted - returned, spent)
  confirmed = max(0, confirmed - max(0, -free))
  local beyond = max(0, weighted + base + a[20] - was_spent + spent - most)
  if not sliding then beyond = max(beyond, a[6]) end
  over = over + max(0, beyond - a[6])
  local room = min(capacity, max(0, free))
  local lease = min(room, max(Want, waiting), max(waiting, (room - fmod(room, 2 * live)) / (2 * live)))
  local expires, f = now + TTL, answered + low % 2 * 8
  local elsewhere, stranded = a[21] - was_out, a[22] - was_stranded
  if flags % 512 >= 256 and room > (capacity - fmod(capacity, ROOM_ABOVE)) / ROOM_ABOVE
    and room + elsewhere - stranded > (capacity - fmod(capacity, PLENTY_ABOVE)) / PLENTY_ABOVE then
    local parts = IDLE_SHARE * max(LEAST_SHARES, live)
    local share = min((capacity - fmod(capacity, parts)) / parts, (room - fmod(room, 2 * live)) / (2 * live))
    lease = max(lease, min(room, share - max(0, granted - returned - spent)))
    expires, f = max(expires, now + min(LONGEST, w * period - now)), f + 256
  end
  if lease > 0 then f = f - answered end
  local inflight = confirmed + lease
  local retry, recalled, recalling = 0, 0, 0
  -- When something is missing, the answer says from when on it may be there. Of a fixed window that
  -- is its end; the rest is for the long way.
  if inflight < waiting then
    if sliding then break end
    retry = w * period - now
    -- Others are to give back: as recall does below.
    if flags >= 512 and elsewhere > 0 then
      books, changed = books or {}, changed or {}
      local all = found[1] and not turned and redis.call('HGETALL', KEYS[1]) or {}
      for i = 1, #all, 2 do
        if all[i] ~= 'a' and not books[all[i]] then books[all[i]] = unpack_record(all[i + 1]) end
      end
      local some, again = false, now >= a[18] + RECALL_AGAIN
      for name, b in pairs(books) do
        local g = b[10]
        if name ~= holder and b[2] == w and g % 2 == 0 and g % 32 < 16 and b[5] + (g % 8 < 4 and b[6] or 0) - b[8] > b[7] then
          local asked = g % 256 - g % 64
          if again or asked == 0 then
            b[10], changed[name], recalled = g - asked + 64, b, recalled + 1
            redis.pcall('PUBLISH', 'sluice:recall:' .. name, KEYS[1])
          end
          some = some or b[10] % 128 >= 64
        end
      end
      if recalled > 0 then a[18] = now end
      recalling = some and now < a[18] + RECALL_TAKES and 1 or 0
    end
  end
  local charged = max(granted + inflight - returned, spent)
  local out = max(0, granted + inflight - returned - spent)
  local next_fence = max(a[2] + 1, now, min(fence, MOST_FENCE) + 1)
  local shut = a[26]
  if not sliding and (capacity - base - others - charged <= (capacity - fmod(capacity, ROOM_ABOVE)) / ROOM_ABOVE
    or live > LEAST_SHARES and capacity >= UNITS_OF_TWO) then shut = w end
  if turned then redis.call('DEL', KEYS[1]) end
  redis.call('HSET', KEYS[1], 'a', pack({
    now, next_fence, w, base, prev, beyond, a[7], a[8], a[9], a[10], most, left, late, a[14], a[15], a[16], a[17], a[18],
    others + charged, a[20] - was_spent + spent, elsewhere + out, stranded, live, min(a[24], expires), a[25], shut, a[27], a[28], a[29], a[30],
  }), holder, pack({ Seq, w, expires, next_fence, granted, inflight, spent, returned, over, f }))
  if changed then
    for name, b in pairs(changed) do
      if name ~= holder then redis.call('HSET', KEYS[1], name, pack(b)) end
    end
  end
  if booked then redis.call('DEL', till) end
  -- The expiry that was set last is still right while something was charged before: it is the end
  -- of the same window. This spares most claims a command.
  if not kept then
    local dead = w * period
    if sliding then dead = dead + period end
    if others + charged == 0 and prev == 0 and base >= 0 then dead = max(now, a[9]) end
    if (a[27] or 0) > 0 then dead = w * period + period end -- the next window was claimed ahead
    local ms = math.floor((dead - now) / 1000) + 1000
    -- A test's time stands still while that of Redis goes on: an hour more keeps the account.
    if Time > 0 then ms = ms + 3600000 end
    redis.call('PEXPIRE', KEYS[1], min(ms, 31536000000 * 2))
  end
  return struct.pack(REPLY,
    0, granted + inflight, next_fence, w, 0, min(capacity, max(0, capacity - weighted - base - others - charged)), elsewhere, w * period - now, retry,
    live, over, 0, now, stranded, beyond, at == w and 1 or 0, 0, expires - now, (f >= 256 and 1 or 0) + (shut >= w and 2 or 0), recalling, recalled, Seq
  )
until true

-- The quick way of buckets: of a holder whose lease has not expired, or who is new, and while no other
-- has expired either since the sums were made. What is outstanding of leases bounds the level, and the sums say how much it is.
repeat
  local flags, period, requests, capacity = Flags, Period, Requests, Burst
  local low = flags % 256
  if KEYS[2] or Algorithm ~= BUCKET or period == 0 or low >= 32 or low % 16 >= 8 or low % 4 >= 2 or requests == 0 then break end
  local now = Time
  if now == 0 then
    local time = redis.call('TIME')
    now = time[1] * 1000000 + time[2]
  end
  if Learning > now or TTL <= 0 then break end
  local holder, fence, granted, spent, returned, waiting = ARGV[1], Fence, Granted, Spent, Returned, Waiting
  local found = redis.call('HMGET', KEYS[1], 'a', holder)
  if not found[1] or not found[2] and (Window ~= 0 or granted + spent + returned > 0) then break end
  local a = unpack_record(found[1])
  -- As above; and not of a level that needs two numbers.
  if now < a[1] or now < a[9] or not a[26] or a[26] > 0 or now >= a[24] or fence > 0 and fence <= a[16] then break end
  local r = { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }
  if found[2] then
    r = unpack_record(found[2])
    if Window == 0 or now >= r[3] then break end
  elseif now >= a[25] then
    break
  end
  local f = r[10] -- not closed: that lease would have expired
  if Seq <= r[1] or f % 8 >= 4 or f % 32 >= 16 or fence == 0 and granted < r[5] or granted > r[5] + r[6] then break end
  local fmod, max, min = math.fmod, math.max, math.min
  local seconds = period / 1000000
  local paid = r[5] + r[6] - r[8]
  local was_charged, was_out, answered = max(paid, r[7]), max(0, paid - r[7]), f % 256 >= 64 and 128 or 0
  local level, carry = fmod(a[7], 1000000), a[8]
  local whole = (a[7] - level) / 1000000
  local held, elapsed = a[21] - a[22], now - a[1] -- what is leased and not spent
  if elapsed > 0 then
    -- Beyond 2^52 products would not be exact: those are for the long way.
    local added = elapsed * requests + carry
    if added >= 4503599627370496 then break end
    local rest = fmod(added, period)
    carry = fmod(rest, seconds)
    local millionths = level + (rest - carry) / seconds
    level = fmod(millionths, 1000000)
    whole = whole + (added - rest) / period + (millionths - level) / 1000000
    local full = max(0, capacity - held)
    if whole >= full then whole, level, carry = full, 0, 0 end
  end
  -- What the holder has given up goes back.
  local after, out_of_others = granted - returned, held - was_out
  whole = whole + min(max(paid - after, -whole), capacity)
  local full = max(0, capacity - out_of_others - max(0, after - spent))
  if whole >= full then
    whole, level = full, 0
  end
  local drift = max(0, spent - after)
  local confirmed = min(drift, whole)
  whole = whole - confirmed
  local over = max(0, drift - confirmed - max(0, r[7] - paid))
  local live, room = a[23] + (found[2] and 0 or 1), min(capacity, whole)
  local lease = min(room, max(Want, waiting), max(waiting, (room - fmod(room, 2 * live)) / (2 * live)))
  whole = whole - lease
  local inflight, elsewhere = confirmed + lease, a[21] - was_out
  f = (lease > 0 and 0 or answered) + low % 2 * 8
  -- Others are to give back.
  if inflight < waiting and flags >= 512 and elsewhere > 0 then break end
  -- When the bucket is full again, and when it has a token. Both are rounded up.
  if capacity * period >= 4503599627370496 or whole >= 4294967296 then break end
  local there, filled, retry = level * seconds + carry, 0, 0
  if capacity > whole then
    local missing = (capacity - whole) * period - there
    filled = (missing + requests - 1 - fmod(missing + requests - 1, requests)) / requests
  end
  if inflight < waiting and whole < min(1, capacity) then
    local missing = period - there
    retry = (missing + requests - 1 - fmod(missing + requests - 1, requests)) / requests
  end
  local charged, out = max(granted + inflight - returned, spent), max(0, granted + inflight - returned - spent)
  local next_fence, expires = max(a[2] + 1, now, min(fence, MOST_FENCE) + 1), now + TTL
  redis.call('HSET', KEYS[1], 'a', pack({
    now, next_fence, a[3], a[4], a[5], a[6], whole * 1000000 + level, carry, a[9], a[10], a[11], a[12], a[13], a[14], a[15], a[16], a[17], a[18],
    a[19] - was_charged + charged, a[20] - r[7] + spent, elsewhere + out, a[22], live, min(a[24], expires), min(a[25], expires + 2 * period), 0,
  }), holder, pack({ Seq, 0, expires, next_fence, granted, inflight, spent, returned, over, f }))
  -- The account may be deleted when the bucket is full and no lease is left. What was set last is
  -- kept where it is later, for another lease may need it; and an eighth more is set than is needed,
  -- so that not each claim has to.
  local ms = math.floor((max(filled + 1, out > 0 and TTL or 0)) / 1000) + 1000
  if Time > 0 then ms = ms + 3600000 end
  ms = min(ms, 31536000000 * 2)
  if redis.call('PTTL', KEYS[1]) < ms then redis.call('PEXPIRE', KEYS[1], ms + math.floor(ms / 8)) end
  return struct.pack(REPLY,
    0, granted + inflight, next_fence, a[3], 0, min(capacity, whole), elsewhere, filled, retry,
    live, over, 0, now, a[22], a[6], found[2] and 1 or 0, 0, TTL, 0, 0, 0, Seq
  )
until true

local holder = ARGV[1]
local function bit(flags, value) return math.floor(flags / value) % 2 == 1 end
local c = {
  seq = Seq, fence = Fence, window = Window, granted = Granted, spent = Spent, returned = Returned,
  waiting = Waiting, want = Want, ttl = TTL, eager = bit(Flags, 1), direct = bit(Flags, 2), refilled = bit(Flags, 4),
  ahead = bit(Flags, 8), tally = bit(Flags, 16), final = bit(Flags, 32), reset = bit(Flags, 64),
  last = bit(Flags, 128), stretch = bit(Flags, 256), recall = bit(Flags, 512),
}
local algorithm, requests, burst, period = Algorithm, Requests, Burst, Period
local bucket, sliding = algorithm == BUCKET, algorithm == SLIDING
local capacity = bucket and burst or requests
local seconds = period / MICRO

local now = Time
if now == 0 then
  local time = redis.call('TIME')
  now = time[1] * MICRO + time[2]
end

local ledger = now -- the ledger's own clock; the account's may be ahead of it
local floor, fmod, max, min = math.floor, math.fmod, math.max, math.min

-- div is the whole part of x / y, exactly.
local function div(x, y) return (x - fmod(x, y)) / y end

-- muldiv is the whole part and the rest of (x * y + add) / z, exactly, for y below
-- 2^44, z below 2^48 and add below 2^48; NEVER if it does not fit. It multiplies four
-- bits at a time, so that nothing comes near 2^53.
local function muldiv(x, y, z, add)
  local r = fmod(x, z)
  local q = (x - r) / z
  local of_q = q * y
  if of_q > NEVER / 2 then return NEVER, 0 end
  local whole, rest, digit = 0, 0, 17592186044416 -- 2^44
  repeat
    digit = digit / 16
    local times = floor(y / digit)
    y = y - times * digit
    local t = rest * 16 + r * times
    rest = fmod(t, z)
    whole = whole * 16 + (t - rest) / z
  until digit == 1
  rest = rest + add
  local left = fmod(rest, z)
  return of_q + whole + (rest - left) / z, left
end

-- The account. A record is {seq, window, expires, fence, granted, inflight,
-- spent, returned, over, flags}; flags: 1 closed, 2 void, 4 direct, 8 eager, 16 last, 32 missing, 64 recalled,
-- 128 recalled and heard since, 256 plenty.
local SEQ, WINDOW, EXPIRES, FENCE, GRANTED, INFLIGHT, SPENT, RETURNED, OVER, FLAGS = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
local a = {
  now = 0, fence = 0, window = 0, base = 0, prev = 0, over = 0, whole = 0, level = 0, carry = 0, relearn = 0, relearned = 0,
  most = 0, left = 0, late = 0, born = 0, folded = 0,
  renamed = 0, moved = 0, recalled = 0, shut = 0,
}
local records, dirty, expired, shifted = {}, {}, {}, false
local fields = redis.call('HGETALL', KEYS[1])
for i = 1, #fields, 2 do
  -- Fields that releases before did not write count as 0 (docs/protocol.md, section 6.6).
  if fields[i] == 'a' then
    local v = unpack_record(fields[i + 1])
    a = {
      now = v[1], fence = v[2], window = v[3], base = v[4], prev = v[5], over = v[6], carry = v[8],
      whole = div(v[7], MICRO) + (bucket and v[26] or 0), shut = bucket and 0 or v[26] or 0, level = fmod(v[7], MICRO), -- a bucket's: whole tokens, and millionths of one
      relearn = v[9], relearned = v[10], most = v[11], left = v[12], late = v[13], born = v[14] or 0, folded = v[15] or 0, renamed = v[16] or 0, moved = v[17] or 0,
      recalled = v[18] or 0,
    }
  else
    local r = unpack_record(fields[i + 1])
    if r[WINDOW] == 0 then r[WINDOW] = -1 end -- a bucket's only life, filled in below
    records[fields[i]] = r
  end
end
for _, r in pairs(records) do
  if r[WINDOW] == -1 then r[WINDOW] = a.window end
end

local function flag(r, value) return bit(r[FLAGS], value) end
local function answered(r) return flag(r, 64) and 64 or flag(r, 128) and 128 or 0 end -- a recall, or not yet
local function paid(r) return r[GRANTED] + r[INFLIGHT] - r[RETURNED] end
local function charged(r) return max(paid(r), r[SPENT]) end
local function outstanding(r)
  local kept = r[GRANTED] - r[RETURNED] - r[SPENT]
  if not flag(r, 4) then kept = kept + r[INFLIGHT] end
  return max(0, kept)
end
local function here(r) return r[WINDOW] == a.window end

-- target is the window that the claim is booked in: the current one, or the next of a fixed window, for others are not
-- claimed ahead. A lease that is given back, whose TTL is 0, is one of the next window when the ledger's clock has gone
-- back since: what was spent of it stays charged there.
local function target()
  if c.window == a.window + 1 and (c.ahead or TTL <= 0) and algorithm == FIXED then return a.window + 1 end
  return a.window
end

local function all_charged(at)
  local sum = at == a.window and a.base or 0
  for _, r in pairs(records) do
    if r[WINDOW] == at then sum = sum + charged(r) end
  end
  return sum
end

local function all_spent(at)
  local sum = a.base
  for _, r in pairs(records) do
    if r[WINDOW] == at then sum = sum + r[SPENT] end
  end
  return sum
end

local function brim()
  local held = 0
  for _, r in pairs(records) do
    if here(r) and a.now < r[EXPIRES] then held = held + outstanding(r) end
  end
  return max(0, burst - held)
end

-- month_begins is when a month of the calendar begins, by its number from
-- January 1970. Days are counted from March of year 0, so that a leap day is a
-- year's last (Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms").
local function month_begins(month)
  local m = month + 23638
  local year = div(m, 12)
  local days = 365 * year + div(year, 4) - div(year, 100) + div(year, 400) + div(153 * fmod(m, 12) + 2, 5)
  return (days - 719468) * 86400 * MICRO
end

-- cuts are the ends of billing months, from that of window first on; nil where the windows are others.
local cuts, first
if #ARGV[2] > CLAIM_BYTES then
  cuts = { struct.unpack('<dddddddd', ARGV[2], CLAIM_BYTES + 1) }
  first = table.remove(cuts, 1)
  table.remove(cuts) -- where unpack has stopped
  -- The beginning of the ledger's window is needed, its end, and those of three after it: its
  -- account may be a month ahead.
  if now < cuts[1] or now >= cuts[4] then return struct.pack('<ddd', 2, now, Seq) end
end

-- window_end is when a window ends. What is before the first of the cuts ended long ago: 0.
local function window_end(w)
  if cuts then return w < first and 0 or cuts[w - first + 1] end
  if period == 0 then return month_begins(w) end
  return w * period
end

local function window_at(time)
  if period > 0 then return div(time, period) + 1 end
  if cuts then
    local i = 1
    while cuts[i] <= time do i = i + 1 end
    return first + i - 1
  end
  -- Searched from an estimate: two steps at most.
  local month = div(time, 30.436875 * 86400 * MICRO) -- a month in the mean; at most one off
  while month_begins(month) > time do month = month - 1 end
  while month_begins(month + 1) <= time do month = month + 1 end
  return month + 1
end

local function weighted_previous()
  if not sliding or a.prev == 0 then return 0 end
  local tick = max(1, floor(period / 1048576))
  local total = div(period + tick - 1, tick)
  local left = div(window_end(a.window) - a.now + tick - 1, tick)
  if a.prev < 0 then -- after a reset, more was given back than was charged since
    return -max(0, muldiv(left, -a.prev, total, 1) - 1)
  end
  return (muldiv(left, min(a.prev, 4398046511104), total, total - 1)) -- 2^42
end

local function free(at) return capacity - weighted_previous() - all_charged(at) end
local function available(at)
  if bucket then return min(burst, a.whole) end
  return min(requests, max(0, free(at)))
end

local function time_to_level(tokens)
  local missing = tokens - a.whole
  if missing <= 0 or requests == 0 then return 0 end
  -- (missing * period - level * seconds - carry) / requests, rounded up
  local us, rest = muldiv(period, missing, requests, 0)
  if us >= NEVER / 2 then return NEVER end
  local there = a.level * seconds + a.carry
  local less = div(there, requests)
  us, rest = us - less, rest - (there - less * requests)
  if rest < 0 then us, rest = us - 1, rest + requests end
  if rest > 0 then us = us + 1 end
  return us
end

-- cap has the level be no higher than so many tokens, and reports whether it was as high.
local function cap(full)
  if a.whole < full then return false end
  if a.whole > full or a.level > 0 then a.whole, a.level = full, 0 end
  return true
end

local function refill(elapsed)
  local full = brim()
  local added, rest = muldiv(elapsed, requests, period, a.carry)
  local millionths = a.level + div(rest, seconds)
  a.whole, a.level, a.carry = min(a.whole + added + div(millionths, MICRO), NEVER), fmod(millionths, MICRO), fmod(rest, seconds)
  if cap(full) then a.carry = 0 end
end

local function obsolete(r)
  if algorithm == FIXED then return r[WINDOW] < a.window and not (c.tally and r[WINDOW] == a.window - 1) end
  if sliding then return r[WINDOW] < a.window - 1 end
  return a.now > r[EXPIRES] and div(a.now - r[EXPIRES], period) > 1 + div(burst, max(1, requests))
end

-- fold_below is the fence below which records of expired leases are folded; 0
-- while there is room for more.
local function fold_below()
  local fences = {}
  for _, r in pairs(records) do fences[#fences + 1] = r[FENCE] end
  if #fences <= MOST_RECORDS then return 0 end
  table.sort(fences)
  return fences[#fences - KEPT_RECORDS + 1]
end

-- ended tells whether a record may be folded into the base.
local function ended(r, oldest)
  if not here(r) then return false end
  return flag(r, 16) and a.now >= r[EXPIRES] + FOLD_AFTER or a.now >= r[EXPIRES] and r[FENCE] < oldest
end

-- A call of Lua takes some thousand arguments at most.
local CHUNK = 1000

-- drop forgets holders that no longer count, but for the claimant, and folds
-- those that have ended: what they are charged becomes part of the base.
local function drop()
  local names, oldest = {}, fold_below()
  for name, r in pairs(records) do
    if name ~= holder then
      if obsolete(r) then
        names[#names + 1] = name
      elseif ended(r, oldest) then
        if not bucket then a.base = a.base + charged(r) end
        a.folded = max(a.folded, r[FENCE])
        names[#names + 1] = name
      end
    end
  end
  for _, name in ipairs(names) do records[name], dirty[name] = nil, nil end
  for i = 1, #names, CHUNK do redis.call('HDEL', KEYS[1], unpack(names, i, min(i + CHUNK - 1, #names))) end
end

-- place books what was drawn of a window's till: each holder's as granted by the last answer. The till is emptied when
-- that is stored. What is no entry of a till is left out.
local placed, drawable = {}, algorithm == FIXED and period > 0
local function place(at)
  if not Tills then return false end
  local till = KEYS[1] .. string.format('{%.0f}', at)
  if a.shut >= at then
    if Tried then redis.call('DEL', till) end
    return false
  end
  local drawn = redis.pcall('GET', till)
  if not drawn then return false end
  placed[#placed + 1] = till
  local entries, new = {}, false
  for i = 1, type(drawn) == 'string' and #drawn - ENTRY + 1 or 0, ENTRY do
    local name, n, seq = struct.unpack('<c14dd', drawn, i)
    name = string.match(name, '^(h%w+) *$')
    local number = math.abs(seq)
    if name and n >= 1 and n < MOST_FENCE and fmod(n, 1) == 0 and number < MOST_FENCE and fmod(number, 1) == 0 then
      local last = entries[#entries]
      if last and last[1] == name and last[3] == number then -- a unit more of the same draw
        last[2] = min(last[2] + n, MOST_FENCE)
      else
        entries[#entries + 1] = { name, n, number, seq < 0 }
        new = new or not records[name]
      end
    end
  end
  local fence = max(a.fence + 1, a.now)
  a.fence = fence + 1 -- which no grant has had
  -- The number of records has a bound, whoever makes them.
  if new then drop() end
  for _, entry in ipairs(entries) do
    local name, n, seq, fresh = entry[1], entry[2], entry[3], entry[4]
    local r = records[name]
    if r and r[WINDOW] > at then
      -- Since then it has claimed of the next window under this name, and does not know that it has drawn: the answer was
      -- lost. Whatever it has of that stays charged, without its name.
      if at == a.window then a.base = min(a.base + n, MOST_FENCE) end
    -- A holder that has claimed since then had given the draw up, which was delayed. What it took of what it drew before
    -- was booked by that claim.
    elseif not (r and r[WINDOW] == at and seq < r[SEQ]) then
      -- Who draws as if it were new, and has been granted something, has forgotten that; so has who draws of the next
      -- window under the name of a lease of this one (docs/protocol.md, section 4.4).
      if r and here(r) and (at ~= a.window or fresh and r[GRANTED] > 0) then
        a.base = a.base + max(r[GRANTED] - r[RETURNED], r[SPENT])
        r = { r[SEQ], at, 0, 0, 0, 0, 0, 0, 0, 0 }
      elseif not r or r[WINDOW] ~= at then
        r = { r and r[SEQ] or 0, at, 0, 0, 0, 0, 0, 0, 0, 0 }
      end
      -- A claim that was sent before the draw, and comes now, would say that the holder has not got it: it is too late. A
      -- draw that was none is settled as a claim with the same number. Nodes leave out every second one.
      r[SEQ] = max(r[SEQ], seq - 1)
      r[EXPIRES], r[FENCE] = max(r[EXPIRES], a.now + min(LONGEST, window_end(at) - a.now)), fence
      r[INFLIGHT], r[FLAGS] = min(r[INFLIGHT] + n, MOST_FENCE), 256
      records[name], dirty[name] = r, true
    end
  end
  return true
end

-- shift moves the account by so much on its clock: what is charged stays, and
-- every lease lasts as long from here on as it would have.
local function shift(by)
  shifted = true
  a.now = a.now + by
  if a.relearn > 0 then a.relearn = a.relearn + by end
  a.recalled = a.recalled + by
  local windows = 0
  if not bucket then windows = window_at(a.now) - a.window end
  a.window = a.window + windows
  if windows ~= 0 then a.renamed, a.moved, a.shut = a.fence, -windows, 0 end
  for name, r in pairs(records) do
    r[EXPIRES], r[WINDOW] = r[EXPIRES] + by, r[WINDOW] + windows
    -- Every record has moved, and is written again.
    dirty[name] = true
  end
end

-- clock is the account's time when the ledger's clock shows now: it waits when
-- that went back by less than a period, and moves back when it was more.
local function clock()
  -- A period of 0 is a calendar month: 30 days, in microseconds. A bucket waits for a second at
  -- most (docs/protocol.md, section 4.8).
  local waits = period == 0 and 2592000000000 or period
  if bucket then waits = BUCKET_WAITS end
  -- Of two nodes whose time zone data differ, one may have turned the account to a window that the other's
  -- claim finds to begin later: it has begun.
  if cuts and a.window == window_at(now) + 1 then a.now = max(a.now, window_end(a.window - 1)) end
  local back = a.now - now
  if back >= waits and a.window ~= 0 then
    -- What was drawn before is booked by the numbers that windows had. Draws have the ledger's time as their fence: all
    -- that holders may have is below the account's afterwards.
    if drawable then
      local this, next = place(a.window), place(a.window + 1)
      if this or next then a.fence = max(a.fence, window_end(a.window + 1)) end
    end
    shift(-back)
  end
  return max(now, a.now)
end

local function advance()
  local fresh = a.window == 0
  now = clock()
  if fresh then a.born = max(a.fence + 1, now) end
  if bucket then
    if fresh then
      a.now, a.window, a.whole, a.level = now, max(1, now), burst, 0
      return
    end
    -- In steps from expiry to expiry, for each lease that expires raises the level to which the
    -- bucket may refill.
    while a.now < now do
      local step = now
      for _, r in pairs(records) do
        if a.now < r[EXPIRES] and outstanding(r) > 0 then step = min(step, r[EXPIRES]) end
      end
      refill(step - a.now)
      a.now = step
    end
    return
  end
  a.now = now
  local w = window_at(now)
  if w == a.window then return end
  -- What counts of the past is that of the window directly before. After a pause of more than a
  -- window nothing of it counts.
  local prev, left, late = 0, capacity, 0
  if not fresh and w == a.window + 1 then
    prev = all_charged(a.window)
    -- By the highest limit that was claimed under: what was admitted before the limit was lowered
    -- is not over.
    left, late = max(left, a.most) - all_spent(a.window), a.over
  end
  a.prev, a.left, a.late, a.window, a.base, a.over, a.most = prev, left, late, w, 0, 0, 0
  if not fresh then drop() end
end

-- relearn_until has little granted until then. Fences from before say nothing any more of what is recorded.
local function relearn_until(time)
  if a.now >= a.relearn then a.relearned, a.born = 0, a.fence + 1 end
  a.relearn = time
end

-- learn takes in that the ledger's data is young: what is not known of the account may have been lost. Of a window
-- that begins in that time, too, for leases of it may have been granted before. For no longer than a ledger learns
-- from here on: one that seems to has had its clock set back.
local function learn()
  local time = min(Learning, a.now + RELEARN_TIME)
  if time > max(a.now, a.relearn) then relearn_until(time) end
end

local function retry_after(missing)
  local to_end = max(0, window_end(target()) - a.now)
  if a.now < a.relearn then return a.relearn - a.now end
  if bucket then return time_to_level(min(missing, burst)) end
  if sliding then
    local weighted = weighted_previous()
    local deficit = missing - max(0, free(a.window))
    if deficit <= 0 then return 0 end -- it has come since
    if deficit > weighted then return to_end end
    local keep = muldiv(period, max(0, weighted - deficit), a.prev, 0)
    return max(1, to_end - keep)
  end
  return to_end
end

local function live_holders(at)
  local live = 0
  for _, r in pairs(records) do
    if r[WINDOW] == at and a.now < r[EXPIRES] then live = live + 1 end
  end
  return max(1, live)
end

-- idle_elsewhere is what other holders may still spend of a window, and can be asked to give back.
local function idle_elsewhere(r, at)
  local n = 0
  for _, other in pairs(records) do
    if other ~= r and other[WINDOW] == at and a.now < other[EXPIRES] then n = n + outstanding(other) end
  end
  return n
end

local recalled, recalling = 0, false -- by this claim

local function answer(r)
  local reset = bucket and time_to_level(burst) or max(0, window_end(r[WINDOW]) - a.now)
  local elsewhere, stranded = 0, 0
  for name, other in pairs(records) do
    if name ~= holder and other[WINDOW] == r[WINDOW] then
      elsewhere = elsewhere + outstanding(other)
      if a.now >= other[EXPIRES] then stranded = stranded + outstanding(other) end
    end
  end
  local retry = 0
  -- A direct claim was granted nothing then: what is in flight confirms drift.
  if r[INFLIGHT] < c.waiting then retry = retry_after(c.direct and c.waiting or 1) end
  return struct.pack(REPLY,
    0, r[GRANTED] + r[INFLIGHT], r[FENCE], r[WINDOW], flag(r, 2) and 1 or 0, available(r[WINDOW]), elsewhere, reset, retry,
    live_holders(r[WINDOW]), r[OVER], a.now < a.relearn and 1 or 0, ledger, stranded,
    r[WINDOW] < a.window and a.late or a.over, (r[WINDOW] == c.window or bucket and c.window ~= 0) and 1 or 0,
    flag(r, 32) and 1 or 0, max(0, r[EXPIRES] - a.now), (flag(r, 256) and 1 or 0) + (a.shut >= r[WINDOW] and 2 or 0), recalling and 1 or 0, recalled, c.seq
  )
end

local function close_expired()
  for name, r in pairs(records) do
    if flag(r, 8) and here(r) and not flag(r, 1) and a.now >= r[EXPIRES] then
      a.whole = a.whole + outstanding(r)
      r[FLAGS] = r[FLAGS] + 1
      r[GRANTED], r[INFLIGHT] = min(r[GRANTED] + r[INFLIGHT], r[SPENT] + r[RETURNED]), 0
      dirty[name] = true
      expired[#expired + 1] = name
    end
  end
  -- From expiry on the bucket has refilled as if these tokens were gone. They were in it all the time:
  -- where it would overflow, what refilled meanwhile is too much.
  if bucket and #expired > 0 then cap(brim()) end
end

-- overfull tells whether the claim comes too late to keep what its lease has: the
-- bucket was refilled since the lease expired, and that is leased to others.
local function overfull(r)
  local kept = c.granted - c.spent - c.returned
  return kept > 0 and a.now >= r[EXPIRES] and kept > brim()
end

local function gone(r, received)
  local lost = 0
  if a.now >= r[EXPIRES] then lost = outstanding(r) end
  if flag(r, 4) then lost = lost + max(0, r[GRANTED] + r[INFLIGHT] - received) end
  return lost
end

local function pour(tokens)
  a.whole = a.whole + min(max(tokens, -a.whole), burst)
  cap(brim())
end

-- tally counts what a holder's last word on the window before adds to its
-- over-admission.
local function tally(r)
  if c.window ~= a.window - 1 or r[WINDOW] > c.window then return 0 end
  if not c.tally and r[WINDOW] ~= c.window then return 0 end
  a.left = a.left - c.spent
  if r[WINDOW] == c.window then a.left = a.left + r[SPENT] end
  local before = a.late
  a.late = max(a.late, -a.left)
  return a.late - before
end

-- overspent is by how much what holders report went further over the limit.
local function overspent()
  a.most = max(a.most, capacity)
  local over, before = max(0, weighted_previous() + all_spent(a.window) - a.most), a.over
  if algorithm == FIXED then over = max(over, before) end
  a.over = over
  return max(0, over - before)
end

local function book(r, at)
  local known = r[WINDOW] == at
  local is_here = c.window == at or (bucket and c.window ~= 0)
  -- A lease that was reclaimed, or whose tokens a bucket has refilled and leased to others, is
  -- void: what was spent of it counts, and the rest is gone (docs/protocol.md, section 4.6).
  local void = known and is_here and (flag(r, 1) and c.fence == r[FENCE] or bucket and overfull(r))
  -- A holder without a fence that was granted something in this window before has forgotten that: it had to make room.
  local forgot = c.fence == 0 and c.granted < r[GRANTED]
  c.forgot = forgot
  local was, lost, over, uncovered = 0, 0, 0, 0
  -- The usual claim: a known holder, about the window that it is booked in.
  if known and is_here and not forgot then
    was, lost, uncovered = paid(r), gone(r, c.granted), max(0, r[SPENT] - paid(r))
  -- The claim's totals begin anew, or are about another window or none. What was confirmed stays
  -- charged without its name; what was in flight it never had (docs/protocol.md, section 4.4).
  elseif known then
    local confirmed = max(r[GRANTED] - r[RETURNED], r[SPENT])
    if bucket then
      a.whole = a.whole + max(0, charged(r) - confirmed - gone(r, r[GRANTED]))
    else
      a.base = a.base + confirmed
    end
  elseif here(r) then -- for the next window, by the record of this one, which the node holds under its other name or has forgotten
    a.base = a.base + max(r[GRANTED] - r[RETURNED], r[SPENT])
  -- The first claim after the turn still speaks of the window before, which counts by its weight:
  -- the ledger's guess of it becomes what the holder says.
  elseif sliding then
    if c.window == a.window - 1 then
      if r[WINDOW] == c.window and not forgot then a.prev = a.prev - charged(r) end
      a.prev = max(0, a.prev + max(c.spent, c.granted - c.returned))
    end
  -- The first claim after the turn is also the last word on the window before.
  elseif not bucket then
    over = tally(r)
  end
  local knew = known and r[GRANTED] + r[INFLIGHT] or 0
  -- What expiry has taken away, and what a bucket has refilled since, is no loss of data.
  local reclaimed = known and flag(r, 1)
  local missing = is_here and not reclaimed and not c.refilled and c.granted > knew
  if missing then relearn_until(a.now + RELEARN_TIME) end
  if is_here and not known and sliding and (c.fence > 0 or a.now < a.relearn) then
    if r[WINDOW] == a.window - 1 then a.prev = a.prev - charged(r) end
    a.prev = max(0, a.prev + Before)
  end
  -- The claim's own fence counts, too. A ledger that has lost its data, and whose clock went back,
  -- would otherwise issue a fence a second time (docs/protocol.md, section 4.6).
  a.fence = max(a.fence + 1, a.now, min(c.fence, MOST_FENCE) + 1)
  r[SEQ], r[WINDOW], r[EXPIRES], r[FENCE] = c.seq, at, a.now + c.ttl, a.fence
  r[GRANTED], r[INFLIGHT], r[SPENT], r[RETURNED], r[OVER] = 0, 0, 0, 0, over
  r[FLAGS] = (known and answered(r) > 0 and 128 or 0) + (void and 2 or 0) + (c.direct and 4 or 0) + (c.eager and 8 or 0) + (c.last and 16 or 0)
    + (missing and 32 or 0)
  if is_here then r[GRANTED], r[SPENT], r[RETURNED] = c.granted, c.spent, c.returned end
  -- Of a void lease the holder keeps what it has spent or returned, and nothing that it could still
  -- spend.
  if void then r[GRANTED] = min(c.granted, c.spent + c.returned) end
  if not bucket then return 0 end
  -- The holder was last heard so long ago that the bucket has filled up since: its old totals are
  -- paid for, and take nothing from the level.
  if not known and c.refilled then was, uncovered = paid(r), max(0, r[SPENT] - paid(r)) end
  -- What the holder has given up since its last claim goes back into the bucket; but not what was
  -- refilled in its place already, which would count twice. Below 0 the holder knows of more than
  -- the ledger did, and the level pays for it.
  local back = was - paid(r)
  if back > 0 then back = max(0, back - lost) end
  pour(back)
  return uncovered
end

-- reset credits the window with all that is charged to it.
local function reset()
  a.prev, a.relearn = 0, 0
  if bucket then
    a.whole, a.level, a.carry = brim(), 0, 0
  else
    a.base = a.base - all_charged(a.window)
  end
end

local function grant(r, uncovered, at)
  local drift = max(0, r[SPENT] - (r[GRANTED] - r[RETURNED]))
  local confirmed = drift
  if bucket then
    -- Only tokens confirm drift: a report alone would free the share again, without end
    -- (docs/protocol.md, section 4.12).
    confirmed = min(drift, a.whole)
    a.whole = a.whole - confirmed
    r[OVER] = max(0, drift - confirmed - uncovered)
  elseif at == a.window then
    confirmed = max(0, drift - max(0, -free(at)))
    r[OVER] = r[OVER] + overspent()
  end
  -- What is available holds for all who claim. While the account learns, a twentieth of the limit
  -- bounds all grants together, for others may have spent the rest and not told it yet
  -- (docs/protocol.md, section 4.9).
  local room = available(at)
  local learning = a.now < a.relearn
  if learning then room = min(room, max(0, max(1, div(capacity, RELEARN_SHARE)) - a.relearned)) end
  -- Leases shrink with the budget: half of what is left is shared by all holders. Otherwise one
  -- node would take the last tokens, and others would be refused while it still has most of them
  -- (docs/protocol.md, section 4.11).
  local tapered = max(c.waiting, div(room, 2 * live_holders(at)))
  local lease = min(room, max(c.want, c.waiting), tapered)
  -- A direct claim is spent at once, for one request: a part of its cost is of no use.
  if c.direct and room < c.waiting then lease = 0 end
  -- While there is plenty, a lease is made larger than was asked for and lasts until the window
  -- ends. The node renews seldom then; what it does not need is recalled when others run short
  -- (docs/protocol.md, section 4.11).
  if c.stretch and not bucket and not learning and room > div(capacity, ROOM_ABOVE) and room + idle_elsewhere(r, at) > div(capacity, PLENTY_ABOVE) then
    r[FLAGS] = r[FLAGS] + 256
    local holders = live_holders(at)
    local share = min(div(capacity, IDLE_SHARE * max(LEAST_SHARES, holders)), div(room, 2 * holders))
    lease = max(lease, min(room, share - max(0, r[GRANTED] - r[RETURNED] - r[SPENT])))
    r[EXPIRES] = max(r[EXPIRES], a.now + min(LONGEST, window_end(at) - a.now))
  end
  if learning then a.relearned = a.relearned + lease end
  r[INFLIGHT] = confirmed + lease
  -- A holder that is granted something again may have more than it needs, and can be recalled
  -- again.
  if lease > 0 then r[FLAGS] = r[FLAGS] - answered(r) end
  if bucket then a.whole = a.whole - lease end
end

-- recallable tells whether a record's holder has something that would help if it were given back.
local function recallable(r)
  if flag(r, 1) or flag(r, 16) or outstanding(r) == 0 then return false end
  if bucket then return a.now < r[EXPIRES] end
  if sliding then return r[WINDOW] >= a.window - 1 end
  return r[WINDOW] == target()
end

-- recall asks holders to give back what they have, because what the claim waits for is not there.
local function recall(r)
  -- Nobody is asked for a claim that got what waits; nor while the account learns, when it is short
  -- of knowledge and not of tokens.
  if not c.recall or r[INFLIGHT] >= c.waiting or a.now < a.relearn then return end
  local some, again = false, a.now >= a.recalled + RECALL_AGAIN
  for name, other in pairs(records) do
    if name ~= holder and recallable(other) then
      -- The mark has each lease recalled once, and not by each claim of each node that waits
      -- (docs/protocol.md, section 4.11).
      if again or answered(other) == 0 then
        other[FLAGS] = other[FLAGS] - answered(other) + 64
        dirty[name] = true
        recalled = recalled + 1
        -- A hint: where this user may not publish, or nobody listens, nothing is lost.
        redis.pcall('PUBLISH', 'sluice:recall:' .. name, KEYS[1])
      end
      some = some or flag(other, 64)
    end
  end
  if recalled > 0 then a.recalled = a.now end
  recalling = some and a.now < a.recalled + RECALL_TAKES
end

-- dead is from when on the account may be deleted: a new one would answer as it does.
local function dead()
  if not bucket then
    -- The next window was claimed ahead: the account must outlive that.
    if all_charged(a.window + 1) > 0 then return window_end(a.window + 1) end
    -- Nothing is charged, as in a new account. A base below 0 is what a reset has credited, and
    -- must not be forgotten.
    if all_charged(a.window) == 0 and a.prev == 0 and a.base >= 0 then return max(a.now, a.relearn) end
    -- A sliding window counts in the next one, by its weight.
    return window_end(sliding and a.window + 1 or a.window)
  end
  local wait = time_to_level(burst)
  if wait >= NEVER / 2 or a.now + wait >= NEVER / 2 then return NEVER end
  local at = a.now + wait + 1
  for _, r in pairs(records) do
    if outstanding(r) > 0 then at = max(at, r[EXPIRES]) end
  end
  return at
end

-- sums are what quick needs to know of all records: what those of this window are
-- charged, have spent, and may still spend, how much of that nobody will, how many
-- are live, when the first of them expires, and until when a holder may come
-- without others' records being folded or forgotten for it.
local function sums()
  local all_of, spent, out, stranded, live, first, tidy, count = 0, 0, 0, 0, 0, NEVER, NEVER, 0
  local before, ended = false, false
  for _, r in pairs(records) do
    count = count + 1
    if here(r) then
      all_of, spent, out = all_of + charged(r), spent + r[SPENT], out + outstanding(r)
      if a.now < r[EXPIRES] then
        live, first = live + 1, min(first, r[EXPIRES])
      else
        stranded, ended = stranded + outstanding(r), true
        -- It is to be closed by the next claim of an eager rule: quick must not settle that.
        if flag(r, 8) and not flag(r, 1) then first = 0 end
      end
    -- A record of a window that is over can be forgotten now: the next new holder does it. That of the
    -- window before is kept for tally.
    elseif algorithm == FIXED and r[WINDOW] == a.window - 1 then
      before = true
    elseif r[WINDOW] < a.window and (not sliding or r[WINDOW] < a.window - 1) then
      tidy = 0
    end
    if flag(r, 16) then tidy = min(tidy, r[EXPIRES] + FOLD_AFTER) end
    -- A bucket's record can be forgotten no sooner than that.
    if bucket then tidy = min(tidy, r[EXPIRES] + 2 * period) end
  end
  -- The next new holder would be one too many: it has others folded first, if any have ended.
  if count >= MOST_RECORDS and ended then tidy = 0 end
  if before then tidy = tidy == NEVER and 1 or 0 end
  return all_of, spent, out, stranded, live, first, tidy
end

-- ahead is what quick needs to know of the records of the next window: what they are charged, and may
-- still spend, how many they are, and when the first expires. Of leases that have expired quick would
-- not know enough: 0.
local function ahead()
  local next_of, next_out, next_live, next_first = 0, 0, 0, NEVER
  for _, r in pairs(records) do
    if r[WINDOW] > a.window then
      next_of, next_out, next_live = next_of + charged(r), next_out + outstanding(r), next_live + 1
      next_first = min(next_first, a.now < r[EXPIRES] and r[EXPIRES] or 0)
    end
  end
  return next_of, next_out, next_live, next_first
end

-- packed is field "a". A level of up to 2^32 tokens is written in millionths, which
-- releases before knew alone; of a higher one the whole tokens stand behind the rest.
local function packed()
  local high = bucket and a.whole >= 4294967296
  local level = not bucket and 0 or high and a.level or a.whole * MICRO + a.level
  local all = { a.now, a.fence, a.window, a.base, a.prev, a.over, level, a.carry, a.relearn, a.relearned, a.most, a.left, a.late, a.born, a.folded, a.renamed, a.moved, a.recalled, sums() }
  all[26] = a.shut
  if high then all[26] = a.whole end
  local next_of, next_out, next_live, next_first = ahead()
  if next_live > 0 then all[27], all[28], all[29], all[30] = next_of, next_out, next_live, next_first end
  return pack(all)
end

-- audit appends what happened to the account's stream, in the same step: what
-- was granted is on record.
local function audit(kind, name, r)
  if not KEYS[2] then return end
  local at = r and r[WINDOW] or a.window
  redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[5], '*', 'kind', kind, 'rule', ARGV[3], 'at', a.now, 'holder', name, 'window', at,
    'claimed', (name == '-' or c.forgot) and 0 or (name == holder and c.window or at),
    'ends', bucket and 0 or window_end(at), 'fence', r and r[FENCE] or c.fence, 'granted', r and r[GRANTED] + r[INFLIGHT] or c.granted,
    'spent', r and r[SPENT] or c.spent, 'returned', r and r[RETURNED] or c.returned, 'waiting', name == holder and c.waiting or 0,
    'limit', capacity, 'bound', ARGV[4], 'free', bucket and a.whole or free(at), 'over', r and r[OVER] or 0)
  -- The stream expires by itself, a while after its last event.
  redis.call('PEXPIRE', KEYS[2], ARGV[6])
end

-- settled is what a claim did, in one word.
local function settled(r, before, relearn)
  if a.relearn > relearn then return 'recovery' end
  if flag(r, 2) then return 'fenced' end
  if r[INFLIGHT] < c.waiting then return 'refused' end
  if r[INFLIGHT] > 0 then return 'grant' end
  if r[RETURNED] > before then return 'return' end
  return 'report'
end

if (c.ahead or c.final) and algorithm ~= FIXED then return too_late() end -- there are no windows that begin anew
advance()
if shifted then -- what was charged is in other windows now
  for at = a.window, a.window + (algorithm == FIXED and 1 or 0) do
    audit('clock', '-', { 0, at, 0, a.fence, bucket and 0 or all_charged(at), 0, 0, 0, 0, 0 })
  end
end

-- store writes the account, and the records that have changed.
local function store()
  local update = { 'a', packed() }
  for name in pairs(dirty) do
    local d = records[name]
    local w = d[WINDOW]
    -- A bucket's window is a time of 9 bytes, and the same in each record: 0 stands for it.
    if bucket then w = 0 end
    update[#update + 1] = name
    update[#update + 1] = pack({ d[1], w, d[3], d[4], d[5], d[6], d[7], d[8], d[9], d[10] })
  end
  for i = 1, #update, CHUNK do redis.call('HSET', KEYS[1], unpack(update, i, min(i + CHUNK - 1, #update))) end
  for _, till in ipairs(placed) do redis.call('DEL', till) end
end

-- expire has the account deleted when nothing of it counts any more.
local function expire()
  -- A second more than needed: fences go on from the account while it is there. By Redis' clock, which may be behind
  -- the account's.
  local ms = floor((dead() - ledger) / 1000) + 1000
  if Time > 0 then ms = ms + 3600000 end -- a test's time stands still, and Redis' goes on
  redis.call('PEXPIRE', KEYS[1], min(ms, 31536000000 * 2))
end

-- kept is an answer that books nothing; but time has passed for the account.
local function kept(said, late)
  if #fields > 0 or #placed > 0 and not late then
    store()
    expire() -- the window may have turned
  end
  if late then audit('stale', holder) end
  return said
end
learn()
-- A holder from before the ledger's clock went back has another number for each window.
if c.fence > 0 and c.fence <= a.renamed then c.window = c.window - a.moved end
if c.ahead and c.window ~= a.window and c.window ~= target() then return kept(too_late(), true) end -- for a window that is over
if drawable then place(target()) end
local r = records[holder]
-- A claim that was sent twice is answered twice alike, and changes the account once. One that was
-- overtaken by a later claim is out of date (docs/protocol.md, section 4.2).
if r and c.seq <= r[SEQ] then
  if c.seq < r[SEQ] or flag(r, 1) then return kept(too_late(), true) end -- late, or a repeat of what expiry has undone
  return kept(answer(r), false)
end
-- A last word counts while the window is the one before, whose sum is kept. A holder whose record
-- is of a later window has claimed under this name since: the record must not be replaced.
if c.final and (c.window ~= a.window - 1 or r and r[WINDOW] > c.window) then return kept(too_late(), true) end
-- Silent holders' tokens are credited before the claim is booked, so that they can be granted to it
-- (docs/protocol.md, section 4.5).
if c.eager then close_expired() end
for _, name in ipairs(expired) do audit('expiry', name, records[name]) end
if not r then
  drop()
  -- Only a new holder makes the account larger. It makes room first, so that the number of records
  -- has a bound (docs/protocol.md, section 4.14). Window -2 is that of no claim.
  r = { 0, -2, 0, 0, 0, 0, 0, 0, 0, 0 }
  if c.window == a.window and c.fence >= a.born and c.fence <= a.folded then -- it was folded, and is still there
    r = { 0, a.window, 0, c.fence, c.granted, 0, c.spent, c.returned, 0, 0 }
    if not bucket then a.base = a.base - max(0, c.granted - c.returned) end
  end
  records[holder] = r
end
if c.final then
  local over = tally(r)
  -- A last word asks for nothing, and gets no fence: its window is over.
  r[SEQ], r[WINDOW], r[EXPIRES], r[FENCE], r[GRANTED], r[INFLIGHT] = c.seq, c.window, 0, 0, c.granted, 0
  r[SPENT], r[RETURNED], r[OVER], r[FLAGS] = c.spent, c.returned, over, 0
  audit('final', holder, r)
else
  local at = target()
  local before, relearn = r[WINDOW] == at and r[RETURNED] or 0, a.relearn
  local uncovered = book(r, at)
  if c.reset then reset() end
  -- The claim was booked first: what it returns can be granted at once, also to itself, and what it
  -- spent is not (docs/protocol.md, section 4.1).
  grant(r, uncovered, at)
  recall(r)
  -- Who would draw of what is left now would mostly get nothing; and many holders have less than units.
  -- A claim for the next window has not booked what was drawn of this one, which nobody would look for any more.
  if drawable and at == a.window and (free(a.window) <= div(capacity, ROOM_ABOVE) or live_holders(a.window) > LEAST_SHARES and capacity >= UNITS_OF_TWO) then
    a.shut = a.window
  end
  audit(c.reset and 'reset' or settled(r, before, relearn), holder, r)
end
dirty[holder] = true
store()
expire()
return answer(r)
