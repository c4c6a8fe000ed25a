-- claim settles a message about the account of a window: account.go, in Lua. KEYS[1] is the account. KEYS[2] is the
-- previous one, of a sliding window. "sum" and "h:NAME" are integers, to which draws add. "c:NAME" is a holder's last
-- claim: seq, spent, fence. "a" is the account's: spent, fence, asked, pause, least.
local PARTS, AGAIN, RARELY, RECORD, SETTLED = 1000000, 10000, 1000000, 20, 600000000
local own, claimed = 'h:' .. ARGV[1], 'c:' .. ARGV[1]
-- 1. Outside its span, an account that is missing would be made anew, without its usage.
if now < Begins or now >= Over then return nothing(OVER) end
local got = redis.call('HMGET', KEYS[1], 'sum', own, claimed, 'a')
local sum, had, before = integer(got[1]), integer(got[2]), 0
if Slides == 1 and now < Ends then
  before = max(0, integer(redis.call('HGET', KEYS[2], 'sum')))
  -- span.before, in the same two steps. (Ends - Begins) / PARTS is a whole number of microseconds.
  local part = floor((Ends - now + (Ends - Begins) / PARTS - 1) / ((Ends - Begins) / PARTS))
  before = floor(before / PARTS) * part + floor((before % PARTS * part + PARTS - 1) / PARTS)
end

-- A draw, in a Cluster or if its window may be over. On one server, draws are plain increments of these fields.
if Seq == 0 then
  expires(Over)
  redis.call('HINCRBY', KEYS[1], 'sum', text(Want))
  redis.call('HINCRBY', KEYS[1], own, text(Want))
  if not got[1] then expires(Over) end
  return reply(0, 0, had + Want, sum + Want + before, -1, 0, now, 0)
end

-- 2. A claim that is not above the last one is late. Its total is older than the record's.
local seq, told = unpacked(got[3], '<ddd')
if Seq <= seq then return nothing(OVERTAKEN) end
local spent, fence, asked, pause, least = unpacked(got[4], '<ddddd')

-- records reads those of all other holders: by name, the total, the usage that it has, and the time of the last claim.
local function records()
  local all, fields = {}, redis.call('HGETALL', KEYS[1])
  for i = 1, #fields, 2 do
    local kind, name = string.match(fields[i], '^([hc]):(.*)$')
    if kind and name ~= ARGV[1] then
      local r = all[name] or { total = 0, says = 0, last = now }
      if kind == 'h' then r.total = integer(fields[i + 1]) end
      if kind == 'c' then r.seq, r.says, r.last = unpacked(fields[i + 1], '<ddd') end
      all[name] = r
    end
  end
  return all
end
local function node(name) return string.sub(name, 1, 9) end

-- dropEarlier, as in account.go: earlier names of the same node spent their totals. A record is younger than its window.
local earlier = {}
if not got[3] and now - Begins >= SETTLED then
  for name, r in pairs(records()) do
    if node(name) == node(ARGV[1]) and now - r.last >= SETTLED and r.total >= 0 then
      spent = spent + r.total - r.says
      table.insert(earlier, name)
    end
  end
end

-- 3. book, as in account.go: the stated total replaces the record (had), and told is the usage that the record had.
local total = max(Taken, Spent)
total = max(min(total, had + MOST - sum), had - MOST - sum)
local cut = max(0, had - total - sum + max(0, Taken - Spent))
if total < had then pause = least end
total = total + cut
local says = min(Spent + cut, total)
sum, spent = sum + total - had, spent + says - told

-- 4. grant: what is needed is spent at once, and a part of a unit stays in hand.
local grant = granted(Limit - sum - before, Want)
local used = min(grant, max(0, Need))
if used < Need then used = used - used % Unit end
total, says = total + grant, says + used
sum, spent, fence = sum + grant, spent + used, max(fence + 1, now)
local others = sum - spent - (total - says)

-- 5. recall: it tells each other holder with tokens in hand, through its node. It returns the number of holders, on
-- which the pause depends.
local function recall()
  local n = 1
  for name, r in pairs(records()) do
    n = n + 1
    -- An ACL may forbid the channel: then tokens come back when their leases end, and claims go on.
    if r.total > r.says then redis.pcall('PUBLISH', 'sluice:recalled:' .. node(name), KEYS[1]) end
  end
  return n
end
local recalling = false
if (grant < Need or sum + before > Limit) and others > 0 then
  local since = now - asked
  recalling = since >= 0 and since < AGAIN
  -- After a step back of the clock, the time of the last recall would be in the future.
  if since < 0 or since >= pause then
    recalling, asked = true, now
    least = max(AGAIN, RECORD * recall())
    pause = max(least, min((since < 0 or since > 2 * RARELY) and 0 or 2 * pause, RARELY))
  end
end

-- 6. The answer is made before the first write, so that an error in it changes nothing.
local answer = reply(0, grant, total, sum + before, others, fence, now, recalling and 1 or 0)
if not got[1] then expires(Over) end
redis.call('HSET', KEYS[1], 'sum', text(sum), own, text(total), claimed, struct.pack('<ddd', Seq, says, fence),
  'a', struct.pack('<ddddd', spent, fence, asked, pause, least))
for _, name in ipairs(earlier) do redis.call('HDEL', KEYS[1], 'h:' .. name, 'c:' .. name) end
-- An existing account has its expiry already.
if not got[1] then expires(Over) end
return answer
