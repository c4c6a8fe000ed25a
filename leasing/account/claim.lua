-- claim settles a message about the account of a window: account.go, in Lua. KEYS[1] is the account. KEYS[2] is the
-- previous one, of a sliding window. "sum" and "h:NAME" are integers, to which draws add. "c:NAME" is a holder's last
-- claim: seq, spent, fence, expiry. "a" is the account's: spent, fence, eagerly, asked, pause, least.
local PARTS, AGAIN, RARELY, RECORD = 1000000, 10000, 1000000, 20
if now < Begins or now >= Over then return nothing(OVER) end
local got = redis.call('HMGET', KEYS[1], 'sum', holder, claimed, 'a')
local sum, had, before = integer(got[1]), integer(got[2]), 0
if Slides == 1 and now < Ends then
  before = max(0, integer(redis.call('HGET', KEYS[2], 'sum')))
  local part = floor((Ends - now + (Ends - Begins) / PARTS - 1) / ((Ends - Begins) / PARTS))
  before = floor(before / PARTS) * part + floor((before % PARTS * part + PARTS - 1) / PARTS)
end

if Kind == DRAWS then
  redis.call('HINCRBY', KEYS[1], 'sum', text(Want))
  redis.call('HINCRBY', KEYS[1], holder, text(Want))
  redis.call('PEXPIREAT', KEYS[1], text(floor((Over + 999) / 1000)))
  return reply(0, 0, had + Want, sum + Want + before, -1, 0, 0, now, 0)
end

local seq, told, _, expires = unpacked(got[3], '<dddd')
if Seq <= seq then return nothing(OVERTAKEN) end
local spent, fence, eagerly, asked, pause, least = unpacked(got[4], '<dddddd')

-- book
local total, cut = max(Taken, Spent), 0
total = max(min(total, had + MOST - sum), had - MOST - sum)
cut = min(max(0, had - total - sum), max(0, had - total))
if total < had then pause = least end
total = total + cut
local says = min(Spent + cut, total)
sum, spent, expires = sum + total - had, spent + says - told, SAFE
if TTL > 0 then
  expires = now + TTL
  if eagerly == 0 or expires < eagerly then eagerly = expires end
end

-- credit
local function hand(r) return r.taken - r.spent end
local set = {}
local free = Limit - max(0, sum) - before
if TTL > 0 and free < Need and eagerly ~= 0 and now >= eagerly then
  eagerly = expires
  each(function(name, r)
    if r.expires > SAFE and r.expires <= now then
      sum = sum - hand(r)
      r.taken, r.expires = r.spent, CLOSED
      set[#set + 1], set[#set + 2] = 'h:' .. name, text(r.taken)
      set[#set + 1], set[#set + 2] = 'c:' .. name, struct.pack('<dddd', r.seq, r.spent, r.fence, CLOSED)
    elseif r.expires > SAFE then
      eagerly = min(eagerly, r.expires)
    end
  end)
  eagerly = max(eagerly, now + AGAIN)
  free = Limit - max(0, sum) - before
end

-- grant
local grant, recalling = granted(free, Want), false
total, sum, fence = total + grant, sum + grant, max(fence + 1, now)
local others = sum - spent - (total - says)

-- recall
if (grant < Need or sum + before > Limit) and others > 0 then
  local since = now - asked
  recalling = since >= 0 and since < AGAIN
  if since < 0 or since >= pause then
    recalling, asked = true, now
    each(function(name, r)
      if hand(r) > 0 then redis.pcall('PUBLISH', 'sluice:recalled:' .. string.sub(name, 1, 9), KEYS[1]) end
    end)
    pause = (since < 0 or since > 2 * RARELY) and 0 or 2 * pause
    least = max(AGAIN, RECORD * (n + 1))
    pause = max(least, min(pause, RARELY))
  end
end

local answer = reply(0, grant, total, sum + before, others, cut, fence, now, recalling and 1 or 0)
redis.call('HSET', KEYS[1], 'sum', text(sum), holder, text(total),
  claimed, struct.pack('<dddd', Seq, says, fence, expires), 'a',
  struct.pack('<dddddd', spent, fence, eagerly, asked, pause, least))
for i = 1, #set, 4000 do redis.call('HSET', KEYS[1], unpack(set, i, min(i + 3999, #set))) end
-- An existing account has its expiry already.
if not got[1] then redis.call('PEXPIREAT', KEYS[1], text(floor((Over + 999) / 1000))) end
return answer
