-- bucket settles a claim about a token bucket: bucket.go, in Lua. KEYS[1] is its account. "b" is level, carry, at,
-- hand, old, turn, ends, slot; "f" is fence, learns; "o" is owed refunds, turn; "h:NAME" is an integer, "c:NAME" a
-- holder's last claim: seq, spent, fence, turn. Those of holder 0 are the tokens withheld since the time of a loss, the
-- latest end of the account, and from which turn on records up to which fence are dropped. Ends is when it is full.
local MICRO, MOST_BURST, WAITS, LEFT_KEPT, ANSWERED = 1000000, 4294967295, 1000000, 2000000, 1099511627776
local full, rate = Limit, was
if inForce then
  Limit = max(min(1, Requests), min(MOST_BURST, was > 0 and floor(Limit * (Requests / was)) or Requests))
end
local got = redis.call('HMGET', KEYS[1], 'b', 'f', holder, claimed, 'c:0', 'h:0', 'o')
local level, carry, at, hand, old, turn, ends, slot = unpacked(got[1], '<dddddddd')
local had, fence, learns = integer(got[3]), unpacked(got[2], '<dd')
local seq, told, _, claimedIn = unpacked(got[4], '<dddd')
local began, latest, last, drops = unpacked(got[5], '<dddd')
local withheld, owed, older, owes = integer(got[6]), unpacked(got[7], '<ddd')
owed, older = owed * flag(owes == turn), older * flag(owes == turn) -- earlier releases do not write it
if Seq <= seq then return nothing(OVERTAKEN) end
local missing = seq == 0 and Taken > 0
local function held(taken, spent) return max(0, min(taken - spent, MOST_BURST)) end
local function room() return max(-MOST_BURST, Limit - hand - old - withheld) * MICRO - level end
-- repay credits refunds that are owed, the older first, as far as there is room.
local function repay()
  local n = min(owed + older, max(0, floor(room() / MICRO)))
  level, owed, older = level + n * MICRO, owed - max(0, n - older), max(0, older - n)
end
-- refilled is the millionths that return in that time, up to the space, and the remainder.
local function refilled(elapsed, carry, space)
  local whole, rest = floor(Requests / Seconds), Requests % Seconds
  if space <= 0 or whole > 0 and elapsed > floor(space / whole) then return max(0, space), 0 end
  local part = elapsed % Seconds * rest + carry
  local added = elapsed * whole + floor(elapsed / Seconds) * rest + floor(part / Seconds)
  if added >= space then return space, 0 end
  return added, part % Seconds
end

local shown = now
if missing and slot == 0 then Learning = now + LEARN end
if now < at and at - now < WAITS then now = at end -- the clock may go to and fro
if slot == 0 then at, ends, slot, level = now, now + TTL, TTL, Limit * MICRO end
if now < at then at, ends = now, min(ends, now + slot) end
while at < now do
  local stop, idle = min(now, ends), hand + old == 0
  if idle then stop = now end
  local added, rest = refilled(stop - at, carry, room())
  level, carry, at = level + added, rest, stop
  if idle and stop >= ends then
    turn, ends, owed, older = turn + 2, now + slot, 0, 0
  elseif stop == ends then
    turn, old, hand, ends = turn + 1, hand, 0, ends + slot
    repay()
    owed, older = 0, owed
  end
end
if learns <= now then level, withheld = level + max(0, withheld * MICRO + min(0, room())), 0 end
if TTL > slot then slot = TTL elseif hand + old == 0 then slot, ends = TTL, min(ends, now + TTL) end
local first, emptied = min(Limit, max(1, floor(Limit / PART))), learns <= now and Learning > now
if emptied then
  began, withheld = now, max(0, floor(level / MICRO) - first)
  level, carry, ends, hand, old = min(level, first * MICRO), 0, now + slot, 0, Limit - first - withheld
  seq, told, had, latest, last, drops, owed, older = 0, 0, 0, 0, 0, 0, 0, 0
end
learns = min(max(learns, Learning), now + LEARN)
if learns > now and seq == 0 then
  local kept = max(0, min(withheld, Limit - first - floor(refilled(max(0, Ends - began), 0, Limit * MICRO) / MICRO)))
  withheld, old = kept, old + withheld - kept
end

-- book
local taken, own, paid = Taken, held(Taken, Spent)
if seq == 0 then
  paid = own + max(0, Spent - taken)
  if Seq < ANSWERED then paid = paid + min(0, taken) end
elseif turn - claimedIn <= 1 then
  if turn == claimedIn then hand = hand - held(had, told) else old = old - held(had, told) end
  paid = max(taken, Spent) - had
else
  paid, own, taken = max(0, Spent - had) + min(0, Spent - told), 0, Spent
end
hand = hand + own
level = max(level - max(-MOST_BURST, min(paid, MOST_BURST)) * MICRO, -MOST)
local total, says, others, over, cut = max(taken, Spent), Spent, hand + old - own, min(level, -room()), 0
if over > 0 then
  level, carry, cut = level - over, 0, min(max(0, -paid), floor(over / MICRO))
  local later = learns > shown and 0 or min(cut, max(0, others - owed - older))
  owed, cut = owed + later, cut - later
  total, says = total + cut, says + cut
end
repay()

local grant = granted(floor(max(0, level) / MICRO))
level, hand, total, fence = level - grant * MICRO, hand + grant, total + grant, max(fence + 1, shown)

-- It expires when the level alone is full, because that loses nothing; and not before leases have ended. Usage before
-- an override counts as long as without one.
local lacks = max(Limit, full) * MICRO - level
full = max(ends + slot, at + (lacks > 0 and min(math.ceil(lacks / max(Requests, rate) * Seconds), 63072000000000) or 0))
latest = max(latest, full + LEFT_KEPT)
local gone = {}
if shown >= drops then
  each(function(name, r)
    if r.fence <= last then gone[#gone + 1], gone[#gone + 2] = 'h:' .. name, 'c:' .. name end
  end)
  last, drops = fence, latest
end
local answer = reply(0, grant, total, floor((Limit * MICRO - level + MICRO - 1) / MICRO) - withheld, others, cut,
  fence, shown, learns > shown and learns or 0, flag(missing), 0)
if emptied then redis.call('DEL', KEYS[1]) end
for i = 1, #gone, 4000 do redis.call('HDEL', KEYS[1], unpack(gone, i, min(i + 3999, #gone))) end
redis.call('HSET', KEYS[1], 'b', struct.pack('<dddddddd', level, carry, at, hand, old, turn, ends, slot),
  'f', struct.pack('<dd', fence, learns), 'h:0', text(withheld), 'c:0', struct.pack('<dddd', max(1, began), latest, last, drops),
  holder, text(total), claimed, struct.pack('<dddd', Seq, says, fence, turn))
if got[7] or owed + older > 0 then redis.call('HSET', KEYS[1], 'o', struct.pack('<ddd', owed, older, turn)) end
full = max(floor((full + 999) / 1000), floor(shown / 1000) + redis.call('PTTL', KEYS[1])) -- not earlier
redis.call('PEXPIREAT', KEYS[1], text(full))
return answer
