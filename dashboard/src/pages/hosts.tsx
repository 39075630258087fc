// Hosts and providers: how much runs where, what it costs, and what does not answer.
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { get, patchJson, Refused, type Session } from "../api";
import { type Host, type Provider, useLab } from "../lab";
import { Action, Badge, Empty, Fact, useTicking, When } from "../parts";
import { href } from "../router";

const HOURS_A_DAY = 24;
const REFRESH_MS = 10_000;

interface Config {
  spec: { parameters?: { hosts?: { name: string }[] } };
}

/** Changes the host of this name, wherever it is in the list now. */
async function drain(provider: Provider, host: string, wanted: boolean): Promise<void> {
  const path =
    `objects/apis/virtualtarget.jumpstarter.dev/v1alpha1/namespaces/${provider.ns}` +
    `/providerconfigs/${provider.name}`;
  const config = await get<Config>(path);
  const index = (config.spec.parameters?.hosts ?? []).findIndex((found) => found.name === host);
  if (index < 0) throw new Error(`${provider.name} has no host ${host} any more`);
  const place = `/spec/parameters/hosts/${index}`;
  await patchJson(path, [
    { op: "test", path: `${place}/name`, value: host },
    { op: "add", path: `${place}/drain`, value: wanted },
  ]);
}

export function Hosts({ session }: { session: Session }): JSX.Element {
  const lab = useLab();
  useTicking();
  const providers = [...lab.provider.values()].sort((a, b) => a.name.localeCompare(b.name));
  return (
    <>
      <h1>Hosts and providers</h1>
      {!session.providers && (
        <Empty>You may not see ProviderConfigs; ask for the role “view”.</Empty>
      )}
      {session.providers && <OwnMachine />}
      {session.providers && !providers.length && <Empty>There is no ProviderConfig. Accounts of providers and further hosts are shown here once there is one.</Empty>}
      {providers.map((provider) => (
        <ProviderSection key={`${provider.ns}/${provider.name}`} provider={provider} />
      ))}
    </>
  );
}

interface Machine {
  instances: number;
  maxInstances: number;
  memoryBytes: number;
  maxMemoryBytes: number;
  cpus: number;
  maxCpus: number;
  cpu: number;
  memory: number;
}

/** The machine of the service, which runs all instances that no provider has. */
function OwnMachine(): JSX.Element | null {
  const [machine, setMachine] = useState<Machine | null>(null);
  useEffect(() => {
    let current = true;
    const load = async (): Promise<void> => {
      try {
        const found = (await get<{ machine: Machine | null }>("machine")).machine;
        if (current) setMachine(found);
      } catch (error) {
        // A person who may see ProviderConfigs in some namespaces only is not shown the machine.
        if (!(error instanceof Refused)) throw error;
      }
    };
    void load();
    const timer = setInterval(() => void load(), REFRESH_MS);
    return () => {
      current = false;
      clearInterval(timer);
    };
  }, []);
  if (!machine) return null;
  const gib = (bytes: number): string => (bytes / 2 ** 30).toFixed(1);
  return (
    <section class="card" aria-labelledby="machine">
      <header>
        <h2 id="machine">Machine of the service</h2>
      </header>
      <dl class="facts">
        <Fact name="Instances" value={limited(machine.instances, machine.maxInstances)} />
        <Fact
          name="Memory promised"
          value={`${gib(machine.memoryBytes)} of ${gib(machine.maxMemoryBytes)} GiB`}
        />
        <Fact name="CPUs promised" value={limited(machine.cpus, machine.maxCpus)} />
        <Fact name="CPU load" value={`${machine.cpu} %`} />
        <Fact name="Memory in use" value={`${machine.memory} %`} />
      </dl>
    </section>
  );
}

function ProviderSection({ provider }: { provider: Provider }): JSX.Element {
  const title = `provider-${provider.ns}-${provider.name}`;
  const reachable = provider.conditions.find((found) => found.type === "Reachable");
  const answers = reachable?.status === "True";
  const cost = Number(provider.hourlyCost || 0);
  return (
    <section class="card" aria-labelledby={title}>
      <header>
        <h2 id={title}>{provider.name}</h2>
        <Badge kind={answers ? "free" : reachable ? "offline" : "starting"}>
          {answers ? "Reachable" : reachable ? "Not reachable" : "Not asked yet"}
        </Badge>
        {provider.deleting && <Badge kind="disabled">Being deleted</Badge>}
        <span class="quiet">
          {provider.ns} · {provider.provisioner}
          {provider.endpoint && ` · ${provider.endpoint}`}
        </span>
      </header>
      <dl class="facts">
        <Fact name="Instances" value={limited(provider.instances, provider.maxInstances)} />
        {provider.quota && (
          <Fact
            name={provider.hosts.length ? "Slots used" : "Quota used"}
            value={`${provider.quota.used} of ${provider.quota.instances}`}
          />
        )}
        <Fact name="Orphans" value={provider.orphans} />
        {(cost > 0 || provider.maxHourlyCost) && (
          <>
            <Fact
              name="Estimated cost per hour"
              value={
                provider.maxHourlyCost
                  ? `${cost.toFixed(2)} of ${provider.maxHourlyCost}`
                  : cost.toFixed(2)
              }
            />
            <Fact name="Per day at this rate" value={(cost * HOURS_A_DAY).toFixed(2)} />
          </>
        )}
        {provider.maxHours > 0 && <Fact name="Longest life" value={`${provider.maxHours} h`} />}
      </dl>
      {provider.error && (
        <p class="problem">
          {provider.error}
          {reachable && !answers && (
            <>
              {" "}
              (since <When time={reachable.since} />)
            </>
          )}
        </p>
      )}
      {provider.orphans > 0 && (
        <p>
          {provider.orphans === 1 ? "An instance has" : `${provider.orphans} instances have`} no
          Exporter; the service deletes what is left over.
        </p>
      )}
      {provider.hosts.length > 0 && (
        <>
          <h3>Hosts</h3>
          <ul class="plain">
            {provider.hosts.map((host) => (
              <HostLine key={host.name} host={host} provider={provider} />
            ))}
          </ul>
        </>
      )}
    </section>
  );
}

function HostLine({ host, provider }: { host: Host; provider: Provider }): JSX.Element {
  const room = Math.max(host.slots, host.used, 1);
  const [kind, word] = host.answering
    ? host.drain
      ? ["starting", "Draining"]
      : ["free", "Up"]
    : host.error
      ? ["offline", "Down"]
      : ["starting", "Not asked yet"];
  return (
    <li class="line host" aria-label={`Host ${host.name}`}>
      <strong>{host.name}</strong>
      <span>
        <Badge kind={kind}>{word}</Badge>
        {!host.answering && host.drain && <Badge kind="starting">Draining</Badge>}
      </span>
      <span class="host-slots">
        <span class="bar" aria-hidden="true">
          <span class="part part-leased" style={{ width: `${(100 * host.used) / room}%` }} />
        </span>
        {host.used} of {host.slots} {host.slots === 1 ? "slot" : "slots"} used
      </span>
      <span class="host-load">
        {host.cpu !== null &&
          host.memory !== null &&
          `load: CPU ${host.cpu} %, memory ${host.memory} %`}
      </span>
      <span class="quiet">{host.address}</span>
      <a href={`${href("targets")}?q=${encodeURIComponent(`host=${host.name}`)}`}>Targets</a>
      <Action
        label={`${host.drain ? "Stop draining" : "Drain"} host ${host.name}`}
        {...(host.drain ? {} : { confirm: "Start nothing there any more?" })}
        run={() => drain(provider, host.name, !host.drain)}
      >
        {host.drain ? "Stop draining" : "Drain"}
      </Action>
      {host.error && <span class="problem host-error">{host.error}</span>}
    </li>
  );
}

function limited(count: number, most: number): string {
  return most ? `${count} of ${most}` : String(count);
}
