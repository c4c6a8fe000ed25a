-- bucket settles a claim about a token bucket: bucket.go, in Lua. KEYS[1] is its account. Its field "b" is level,
-- carry, at, hand, old, fence. Lease is the slot of the holder's lease, Slot the length of one.
local MICRO, MOST_BURST, WAITS, STATED = 1000000, 4294967295, 1000000, -1
-- A missing field is zeros: at is 0, so the bucket is new, and full.
local level, carry, at, hand, old, fence = unpacked(redis.call('HGET', KEYS[1], 'b'), '<dddddd')
local new = at == 0
local function room() return (Limit - hand - old) * MICRO end
-- refill adds what returns in that time to the level, and sets the remainder. Go computes elapsed x Requests in 128
-- bits. Here the product is split by whole seconds, so that each part of it is exact as a double.
local function refill(elapsed)
  local space, whole, rest = room() - level, floor(Requests / Seconds), Requests % Seconds
  local part = elapsed % Seconds * rest + carry
  local added = elapsed * whole + floor(elapsed / Seconds) * rest + floor(part / Seconds)
  carry = part % Seconds
  if space <= 0 or whole > 0 and elapsed > floor(space / whole) or added >= space then added, carry = space, 0 end
  level = level + added
end

-- 1. Bring the level to now, slot by slot while there are leases. A clock that went back by less than WAITS stops it.
if new then level, at = Limit * MICRO, now end
if at - now >= WAITS then at = now end
while at < now do
  local stop = now
  if hand + old > 0 then stop = min(now, (floor(at / Slot) + 1) * Slot) end
  refill(stop - at)
  if stop % Slot == 0 then hand, old = 0, hand end
  at = stop
end

-- 2. The holder's lease leaves its slot's count. The rest of it, as far as it goes on, counts in this slot.
local slot, left = floor(at / Slot), 0
local held = max(0, min(Taken, MOST_BURST))
if Lease == slot then hand = hand - min(held, hand) elseif Lease == slot - 1 then old = old - min(held, old) end
if Lease == slot or Lease == slot - 1 then
  local rest = max(0, held - max(0, Spent))
  if Need <= 0 then left = max(0, min(rest, Want)) end
  hand, level = hand + left, level + (rest - left) * MICRO
end
-- 3. Charges and refunds, or after a loss the level that a node states. The lowest one counts.
level = min(level, room())
if Lease == STATED then
  level = max(-MOST, min(level, (max(-MOST_BURST, min(Taken, MOST_BURST)) - hand - old) * MICRO))
else
  level = max(level - min(max(0, Spent - max(0, Taken)), MOST_BURST) * MICRO, -MOST)
  level = level + max(0, min(min(-Spent, MOST_BURST) * MICRO, room() - level))
end

-- 4. Grant whole tokens. Only the lease is in hand: the need is spent.
local free = floor(max(0, level) / MICRO)
if free < Need then free = free - free % Unit end
local grant = granted(free, Want - left)
local lease = grant - max(0, min(grant, Need))
level, hand, fence = level - grant * MICRO, hand + lease, max(fence + 1, now)

-- It expires when the level alone is full, because that loses nothing; and not before leases have ended.
local lacks = max(0, Limit * MICRO - level)
local wait = min(lacks > 0 and math.ceil(lacks / Requests * Seconds) or 0, 63072000000000)
expires(at + max(2 * Slot, wait))
redis.call('HSET', KEYS[1], 'b', struct.pack('<dddddd', level, carry, at, hand, old, fence))
if new then expires(at + max(2 * Slot, wait)) end
return reply(0, grant, left + lease, floor((Limit * MICRO - level + MICRO - 1) / MICRO), hand + old - left - lease,
  fence, at, 0)
